"""One segment of a partition's log: a `.log` file of record batches and its two indexes.

Sizes: `size_bytes` counts every batch that belongs to the segment, `written_bytes` those that the file has.
The rest is in the log's memory and in the WAL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from chronik.model import RequestError
from chronik.records.batch import (
    HEADER_BYTES,
    MAGIC_V2,
    OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    check_batch,
    read_header,
)
from chronik.storage.disk import Disk, File, read_whole
from chronik.storage.index import (
    OFFSET_ENTRY,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY,
    OffsetIndex,
    TimeIndex,
)

log = logging.getLogger(__name__)

_SCAN_BYTES: Final = 64 * 1024
_NO_END: Final = 2**63
ReadAt: TypeAlias = Callable[[int, int], bytes]


class WouldBlock(Exception):
    """The bytes are not in the page cache: read them in the disk's read thread instead."""


def segment_name(base_offset: int, suffix: str = ".log") -> str:
    return f"{base_offset:020d}{suffix}"


class Segment:
    __slots__ = (
        "_cuts",
        "_disk",
        "_file",
        "_index_written",
        "_offset_index",
        "_path",
        "_time_index",
        "_time_written",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "index_interval_bytes",
        "is_unsynced",
        "max_timestamp",
        "max_timestamp_offset",
        "size_bytes",
        "verified_bytes",
        "was_used",
        "written_bytes",
    )

    def __init__(self, disk: Disk, path: Path, base_offset: int, *, index_interval_bytes: int = 4096) -> None:
        """`path` is the `.log` file; it is created by the first write."""
        self._disk = disk
        self._path = path
        self._file: File | None = None
        """None also if `Handles` needed the descriptor for another file."""
        self.was_used = False
        self.is_unsynced = False
        """The file may hold bytes that the device does not have. A file that this process only opened counts
        as well: an earlier process may have written to it."""
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._index_written = 0
        self._time_written = 0
        self.bytes_since_index = 0
        """Bytes of batches since the last index entry. Once over `index_interval_bytes`, the next batch gets
        an entry."""
        self.index_interval_bytes = index_interval_bytes
        self.base_offset = base_offset
        self.size_bytes = 0
        self.written_bytes = 0
        self.verified_bytes = 0
        """Bytes from the start that this process wrote, or found sound."""
        self._cuts: list[int] = []
        """Positions at which the file is still to be cut, in this order. Bytes behind them are stale."""
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.created_ms = -1
        """Timestamp of the first append in this process; segment.ms counts from here."""

    @classmethod
    def create(cls, disk: Disk, directory: Path, base_offset: int, *, index_interval_bytes: int) -> Segment:
        segment = cls(
            disk,
            directory / segment_name(base_offset),
            base_offset,
            index_interval_bytes=index_interval_bytes,
        )
        segment._offset_index = OffsetIndex(base_offset)
        segment._time_index = TimeIndex(base_offset)
        return segment

    @classmethod
    def load(cls, disk: Disk, directory: Path, base_offset: int, *, index_interval_bytes: int) -> Segment:
        """A segment that is on disk; its indexes are read when first needed."""
        path = directory / segment_name(base_offset)
        segment = cls(disk, path, base_offset, index_interval_bytes=index_interval_bytes)
        segment.size_bytes = segment.written_bytes = disk.size(path)
        return segment

    # --- appending ---------------------------------------------------------------------------------

    def note_append(self, header: BatchHeader, last_offset: int, size: int, now_ms: int = -1) -> int:
        """Account for a batch at the end; returns its position. The bytes are written later."""
        position = self.size_bytes
        if self.created_ms < 0:
            self.created_ms = now_ms
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > self.index_interval_bytes:
            self.offset_index.add(last_offset, position)
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += size
        self.size_bytes = position + size
        return position

    def note_created(self, timestamp_ms: int) -> None:
        """When the segment began, unless that is known already."""
        if self.created_ms < 0:
            self.created_ms = timestamp_ms

    def note_max_timestamp(self, timestamp: int, offset: int) -> None:
        """What an index of this segment says, or whoever wrote it."""
        self.max_timestamp, self.max_timestamp_offset = timestamp, offset

    def note_sound(self, size: int) -> None:
        """Everything before this position was found sound, or has just been written."""
        self.verified_bytes = max(self.verified_bytes, size)

    def note_unsound(self, position: int) -> None:
        """Damage was found at this position."""
        self.verified_bytes = min(self.verified_bytes, position)

    def note_timestamp(self, header: BatchHeader) -> None:
        """A batch is the youngest, unless another one is."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset

    def note_written(self) -> None:
        """Blocking: the same for the batches in the file."""
        for _, header in self.scan(self.offset_index.last_position):
            self.note_timestamp(header)

    def forget_from(self, position: int, offset: int) -> None:
        """Take back batches that were noted from `position` on and never written.

        The highest timestamp may be one of those that are left: `note_timestamp` and `note_written` tell.
        """
        self.size_bytes = position
        self.offset_index.truncate(position)
        self.time_index.truncate(offset)
        self.bytes_since_index = position - self.offset_index.last_position
        if self.max_timestamp_offset >= offset:
            self.max_timestamp, self.max_timestamp_offset = self.time_index.last or (-1, self.base_offset)

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Blocking: put bytes that were noted into the file, and new index entries into theirs."""
        file = self.file
        self.is_unsynced = True
        end = position + file.write_at(position, buffers)
        if position <= self.verified_bytes:
            self.verified_bytes = max(self.verified_bytes, end)
        self.written_bytes = max(self.written_bytes, end)
        self._write_indexes()

    def _write_indexes(self) -> None:
        if len(self.offset_index) > self._index_written:
            data = self.offset_index.encode(self._index_written)
            self._write_beside(".index", self._index_written * OFFSET_ENTRY.size, data)
            self._index_written += len(data) // OFFSET_ENTRY.size
        if len(self.time_index) > self._time_written:
            data = self.time_index.encode(self._time_written)
            self._write_beside(".timeindex", self._time_written * TIME_ENTRY.size, data)
            self._time_written += len(data) // TIME_ENTRY.size

    def seal(self) -> None:
        """Blocking: the segment gets no more batches; its time index ends with the highest timestamp."""
        if self.max_timestamp >= 0:
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
        self._write_beside(".index", 0, b"")
        self._write_beside(".timeindex", 0, b"")
        self._write_indexes()

    def _write_beside(self, suffix: str, position: int, data: bytes) -> None:
        file = self._disk.open(self._path.with_suffix(suffix), create=True)
        try:
            if data:
                file.write_at(position, [data])
        finally:
            file.close()

    def sync(self) -> None:
        if self._file is not None or self._disk.exists(self._path):
            self.file.sync()
        self.is_unsynced = False

    # --- files -------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self._path

    @property
    def file(self) -> File:
        self.was_used = True
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self._path, create=self.written_bytes == 0)
            self.is_unsynced = True
            self._disk.handles.opened(self)
        return file

    def let_go(self) -> None:
        """Another file needs the descriptor. A read or write under way keeps it until it ends."""
        self._file = None

    def keep_open(self) -> None:
        """Blocking: hold the file from now on, since another one will take its path."""
        file = self.file
        self._disk.handles.forget(self)
        self._file = file  # it may have been let go a moment ago

    def close(self) -> None:
        file, self._file = self._file, None
        self._disk.handles.forget(self)
        if file is not None:
            file.close()

    @property
    def index_bytes(self) -> int:
        """Size of the larger index."""
        return max(
            len(self.offset_index) * OFFSET_ENTRY.size,
            len(self.time_index) * TIME_ENTRY.size,
        )

    def forget_indexes(self) -> None:
        """Give back the memory of the indexes; they are read again when needed. Sealed segments only."""
        if self._offset_index is not None and self._index_written == len(self._offset_index):
            self._offset_index = None
            self._time_index = None

    def delete(self) -> None:
        """Unlink the files. A read under way keeps its handle; the last one to let go closes it."""
        self._file = None
        self._disk.handles.forget(self)
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            self._disk.remove(self._path.with_suffix(suffix))

    # --- indexes -----------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load_indexes()
        index = self._offset_index
        assert index is not None
        return index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        index = self._time_index
        assert index is not None
        return index

    def _load_indexes(self) -> None:
        offsets = OffsetIndex.decode(
            self.base_offset,
            read_whole(self._disk, self._path.with_suffix(".index")) or b"",
            self.written_bytes,
        )
        times = TimeIndex.decode(
            self.base_offset, read_whole(self._disk, self._path.with_suffix(".timeindex")) or b""
        )
        sparse = offsets is not None and self.written_bytes - offsets.last_position > 8 * max(
            self.index_interval_bytes, _SCAN_BYTES
        )
        if offsets is None or times is None or sparse:
            log.warning("%s: an index is missing or damaged; it is rebuilt from the log", self._path)
            self.rebuild_indexes()
            return
        self._offset_index, self._time_index = offsets, times
        self._index_written, self._time_written = len(offsets), len(times)
        self.bytes_since_index = self.written_bytes - offsets.last_position
        last = times.last
        if last is not None and last[0] > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = last
        self.note_written()

    def rebuild_indexes(self) -> None:
        """Blocking: walk the whole file and write both indexes again."""
        self._offset_index = OffsetIndex(self.base_offset)
        self._time_index = TimeIndex(self.base_offset)
        self._index_written = self._time_written = 0
        self.bytes_since_index = 0
        size, self.size_bytes = self.written_bytes, 0
        for position, header in self.scan(0, size):
            self.size_bytes = position
            # A batch's offset stands outside its checksum: a damaged one may fit in no index.
            if 0 <= header.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX:
                self.note_append(header, header.last_offset, header.size_bytes)
        self.size_bytes = size
        try:
            for suffix in (".index", ".timeindex"):
                self._disk.remove(self._path.with_suffix(suffix))
                self._write_beside(suffix, 0, b"")
            self._write_indexes()
        except OSError as error:  # the segment's next write takes them along
            log.warning("%s: its indexes are in memory alone for now: %s", self._path, error)

    # --- reading -----------------------------------------------------------------------------------

    @property
    def readable_bytes(self) -> int:
        """What the file has and the segment still holds."""
        return min([self.written_bytes, *self._cuts])

    def read_now(self, position: int, size: int) -> bytes:
        """Bytes that the page cache has; raises WouldBlock where the device would be waited for."""
        data = self.file.read_cached(position, min(size, self.written_bytes - position))
        if data is None:
            raise WouldBlock
        return data

    @property
    def readable_now(self) -> bool:
        """Whether a read may be tried on the loop: file open, index in memory, bytes known to be sound."""
        return (
            self._file is not None
            and self._offset_index is not None
            and self.verified_bytes >= self.written_bytes
        )

    def scan(
        self, start: int, end: int | None = None, read: ReadAt | None = None
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of the batches from `start` on; stops where they make no sense."""
        end = self.readable_bytes if end is None else end
        if start + HEADER_BYTES > end:
            return  # nothing is there, perhaps not even the file
        read = read or self.file.read_at
        position = start
        chunk, chunk_start = b"", start
        while position + HEADER_BYTES <= end:
            inside = position - chunk_start
            if inside + HEADER_BYTES > len(chunk):
                chunk, chunk_start, inside = read(position, _SCAN_BYTES), position, 0
                if len(chunk) < HEADER_BYTES:
                    return
            header = read_header(chunk, inside)
            size = header.batch_length + OVERHEAD_BYTES
            if header.magic != MAGIC_V2 or size < HEADER_BYTES or position + size > end:
                return
            yield position, header
            position += size

    def locate(self, offset: int, read: ReadAt | None = None) -> tuple[int, BatchHeader] | None:
        """Position and header of the first written batch whose last offset is at or behind `offset`.

        None where batches on the way there are out of order: one of them says offsets that are not its own.
        """
        next_offset = self.base_offset
        for position, header in self.scan(self.start_for(offset, read), None, read):
            if header.base_offset < next_offset:
                self.verified_bytes = min(self.verified_bytes, position)
                return None
            if header.last_offset >= offset:
                return position, header
            next_offset = header.next_offset
        return None

    def start_for(self, offset: int, read: ReadAt | None = None) -> int:
        """A batch's position, at or before the one that holds `offset`.

        An index is a hint, and never synced: after a power loss it may hold entries from before the log was
        cut and written to again. So the batch that it speaks of must be there.
        """
        for last_offset, position in self.offset_index.before(offset):
            if position + HEADER_BYTES <= self.readable_bytes:
                data = (read or self.file.read_at)(position, HEADER_BYTES)
                header = read_header(data) if len(data) == HEADER_BYTES else None
                if header is not None and header.magic == MAGIC_V2 and header.last_offset == last_offset:
                    return position
        return 0

    def start_for_time(self, timestamp: int) -> int:
        """A batch's position, before which no record is as young as `timestamp`.

        Of this index too an entry counts only if the batch that it speaks of is there.
        """
        for stamp, last_offset in self.time_index.before(timestamp):
            found = self.locate(last_offset)
            if found is not None and (found[1].last_offset, found[1].max_timestamp) == (last_offset, stamp):
                return found[0]
        return 0

    def end_before(self, offset: int) -> int:
        """Where the written batches before `offset` end.

        Behind that anything may stand: a power loss leaves pages of a file that was cut and written to again.
        """
        end = self.start_for(offset)
        for position, header in self.scan(end):
            if header.last_offset >= offset:
                return position
            end = position + header.size_bytes
        return end

    def read_sound(
        self, position: int, size: int, end_offset: int = _NO_END, *, is_strict: bool = False
    ) -> bytes:
        """Blocking: up to `size` bytes of whole, sound batches; empty if the first one is damaged.

        A batch's offset stands outside its checksum. It is right if batches are in order and end before
        `end_offset`; `is_strict` also holds the last of them against what stands behind it.
        """
        reach = min(size + HEADER_BYTES, self.readable_bytes - position) if is_strict else size
        data = self.file.read_at(position, max(size, reach))
        end = start_of_last = 0
        next_offset = self.base_offset
        while len(data) - end >= HEADER_BYTES:
            header = read_header(data, end)
            if header.base_offset < next_offset:
                end = start_of_last if is_strict else end  # either of the two may be the wrong one
                break
            if end + header.batch_length + OVERHEAD_BYTES > size and end > 0:
                break
            try:
                check_batch(data, end)
            except RequestError:
                break
            if header.last_offset >= end_offset:
                break
            start_of_last, next_offset = end, header.next_offset
            end += header.size_bytes
        if position <= self.verified_bytes:
            self.verified_bytes = max(self.verified_bytes, position + end)
        return data[:end]

    def sound_end(self) -> int:
        """Blocking: how far the file is whole batches with right CRCs."""
        position = 0
        while position < self.written_bytes:
            data = self.read_sound(position, max(1 << 20, self._batch_bytes(position)))
            if not data:
                break
            position += len(data)
        return position

    def _batch_bytes(self, position: int) -> int:
        return next((header.size_bytes for _, header in self.scan(position)), 0)

    def next_sound_position(self, position: int) -> int | None:
        """Blocking: the next indexed place behind damage at `position` where a whole batch stands."""
        place = self.offset_index.position_after(position)
        while place is not None:
            for start, header in self.scan(place):
                if start == place and self.read_sound(place, header.size_bytes):
                    return place
                break
            place = self.offset_index.position_after(place)
        return None

    def cut(self, position: int, next_offset: int) -> Callable[[], None]:
        """Drop batches from `position` on in memory; returns the blocking work that does so in the files.

        That work must run behind writes already under way and before those of later batches: in the same
        I/O thread.
        """
        self._cuts.append(position)
        self.offset_index.truncate(position)
        self.time_index.truncate(next_offset)
        offset_entries, time_entries = len(self.offset_index), len(self.time_index)
        self.size_bytes = position
        self.bytes_since_index = position - self.offset_index.last_position
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last or (-1, self.base_offset)

        def trim() -> None:
            try:
                if self.written_bytes > position:
                    file = self.file
                    self.is_unsynced = True
                    file.truncate(position)
            finally:
                self.written_bytes = min(self.written_bytes, position)
                self.verified_bytes = min(self.verified_bytes, position)
                self._cuts.pop(0)
            self._index_written = min(self._index_written, offset_entries)
            self._time_written = min(self._time_written, time_entries)
            self._trim_beside(".index", self._index_written * OFFSET_ENTRY.size)
            self._trim_beside(".timeindex", self._time_written * TIME_ENTRY.size)
            # Not further than what is written: that would make a file for a segment that may get no batches.
            for _, header in self.scan(self.start_for(next_offset), self.written_bytes):
                self.note_timestamp(header)

        return trim

    def truncate(self, position: int, next_offset: int) -> None:
        """Blocking: cut the segment to `position` bytes, in memory and in its files."""
        self.cut(position, next_offset)()

    def _trim_beside(self, suffix: str, size: int) -> None:
        if self._disk.exists(self._path.with_suffix(suffix)):
            file = self._disk.open(self._path.with_suffix(suffix))
            try:
                file.truncate(size)
            finally:
                file.close()
