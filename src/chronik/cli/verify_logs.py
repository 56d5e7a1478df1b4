"""`chronik verify` of one partition: segments, indexes, producers, and what compaction left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from chronik.cli.verify_batches import NO_END, IndexCheck, ProducerCheck
from chronik.cli.verify_findings import (
    FROM_NOTHING,
    FROM_REPLICA,
    NOT_NOTICED,
    FileFinding,
    Inspection,
    Place,
)
from chronik.cli.verify_wal import Replay, WalCheck
from chronik.records.batch import HEADER_BYTES, BatchHeader, read_header
from chronik.storage import checkpoint as checkpoints
from chronik.storage.checkpoint import LogState
from chronik.storage.cleanable import FILE_NAME as CLEANER_POSITION
from chronik.storage.cleanable import CleanedPosition
from chronik.storage.soundness import SegmentFault, find_fault

_ENDLESS: Final = -1

Advance = Callable[[int], None]


def segments_of(folder: Path) -> list[Path]:
    """Oldest first; without those that a compaction has replaced and the next start removes."""
    replaced = [_range_of(mark) for mark in unfinished_swaps(folder)]
    return sorted(
        path
        for path in folder.glob("*.log")
        if path.stem.isdigit() and not any(first <= int(path.stem) < end for first, end in replaced)
    )


def unfinished_swaps(folder: Path) -> list[Path]:
    return sorted((*folder.glob("*-*.swap"), *folder.glob("*-*.drop")))


def _range_of(mark: Path) -> tuple[int, int]:
    base, end = mark.stem.split("-")
    return (int(base) if mark.suffix == ".drop" else int(base) + 1), int(end)


class LogCheck:
    """`state` is what the checkpoint says of the log, None if it says nothing or none can be read."""

    def __init__(
        self,
        inspection: Inspection,
        folder: Path,
        state: LogState | None,
        wal: WalCheck,
        *,
        is_checkpoint_read: bool,
        is_stopped: bool,
        is_first_run: bool,
        is_compacted: bool,
    ) -> None:
        self._inspection = inspection
        self._folder = folder
        self._wal = wal
        self._is_checkpoint_read = is_checkpoint_read
        self._is_stopped = is_stopped
        """The node ended in order: it had written everything out."""
        self._is_first_run = is_first_run
        """Whether there is no checkpoint yet and none is needed: the WAL has everything."""
        self._is_compacted = is_compacted or (folder / CLEANER_POSITION).exists()
        self._place = Place.of_folder(folder)
        self._is_known = state is not None or self._place[:2] in wal.replays
        self._replay = wal.replays.get(self._place[:2], Replay())
        self._state = None if self._replay.is_reset else state
        self._paths = segments_of(folder)
        self._is_whole = True
        """Nothing was found to be missing so far."""
        self._compacted_below: int | None = 0
        """Offsets before this may have been removed by compaction; None if that cannot be known."""

    def run(self, advance: Advance) -> None:
        self._leftovers()
        self._missing_files()
        producers = self._producers()
        ends = [int(path.stem) for path in self._paths[1:]]
        next_offset = 0
        log_start = max(self._state.log_start_offset if self._state is not None else 0, self._replay.start)
        for path, end_offset in zip(self._paths, [*ends, NO_END], strict=True):
            if end_offset <= log_start:  # it waits for its deletion, and has no indexes if they were not due
                advance(path.stat().st_size)
                continue
            next_offset = self._segment(path, end_offset, producers)
            self._missing_offsets("missing offsets", path, next_offset, end_offset)
            advance(path.stat().st_size)
        if self._paths:
            self._behind_the_wal(next_offset)
        if producers is not None and self._state is not None and self._replay.cut_at is None:
            self._tell_producers(producers, self._state)
        for path in sorted(self._folder.glob("*index")):
            if not path.with_suffix(".log").exists():
                what = "no segment has this name"
                was_before = bool(self._paths) and path.stem.isdigit() and path.stem < self._paths[0].stem
                if was_before:
                    what = "its segment was deleted before the node ended; the next start removes it"
                finding = self._find(path, -1, "index without a log", what, is_harmless=was_before)
                self._inspection.set_aside(finding, path)

    def _find(
        self,
        path: Path,
        position: int,
        kind: str,
        what: str,
        offset: int | None = None,
        *,
        is_harmless: bool = False,
    ) -> FileFinding:
        place = self._place._replace(offset=offset)
        return self._inspection.find(path, position, kind, what, place, is_harmless=is_harmless)

    # --- which files are there -----------------------------------------------------------------------

    def _leftovers(self) -> None:
        path = self._folder / CLEANER_POSITION
        if path.exists():
            position = _cleaned_position(path.read_bytes())
            self._compacted_below = position.first_dirty_offset if position is not None else None
            if position is None:
                what = "the whole log counts as not compacted: that costs work, no data"
                self._find(path, 0, "damaged cleaner position", what)
        for mark in unfinished_swaps(self._folder):
            self._compacted_below = NO_END
            what = "a compaction was about to replace these segments; the next start finishes it"
            self._find(mark, -1, "unfinished compaction", what, is_harmless=True)
        if not unfinished_swaps(self._folder):
            for left in sorted(self._folder.glob("*.cleaned")):
                what = "a compaction was writing it when the node ended; the next start removes it"
                self._find(left, -1, "unfinished compaction", what, is_harmless=True)

    def _missing_files(self) -> None:
        state, bases = self._state, [int(path.stem) for path in self._paths]
        if (
            self._is_checkpoint_read
            and not self._is_known
            and any(path.stat().st_size for path in self._paths)
        ):
            what = "neither the checkpoint nor the WAL knows it; a node that gets this partition deletes it"
            self._find(self._folder, -1, "unknown log", what)
        if state is None or not state.active_bytes or state.log_end_offset <= state.log_start_offset:
            return
        start = max(state.log_start_offset, self._replay.start)
        cut_at = self._replay.cut_at
        if state.active_base_offset not in bases and (cut_at is None or cut_at > state.active_base_offset):
            missing = self._folder / f"{state.active_base_offset:020d}.log"
            what = f"the checkpoint vouches for it; {NOT_NOTICED}"
            self._find(missing, -1, "missing segment", what, state.active_base_offset)
            self._is_whole = False
        elif bases:
            self._missing_offsets("missing segment", self._paths[0], start, bases[0])

    def _missing_offsets(self, kind: str, path: Path, next_offset: int, end_offset: int) -> None:
        limit = self._compacted_below
        if next_offset >= end_offset or end_offset == NO_END or (limit is not None and end_offset <= limit):
            return
        what = f"offsets {next_offset} to {end_offset - 1} are not there"
        if limit is None:
            what += "; perhaps removed by compaction: its position cannot be read"
        elif self._is_compacted:
            # Segments are replaced group by group; the position moves only after each of them.
            what += "; removed by a compaction that was interrupted, or lost: compare with other replicas"
        else:
            what += f"; {NOT_NOTICED}"
        self._find(path, -1, kind, what, next_offset)
        self._is_whole = False

    # --- segments --------------------------------------------------------------------------------

    def _vouched(self, path: Path) -> int:
        """For how many bytes of a segment the checkpoint vouches; `_ENDLESS` for all.

        Without a checkpoint nobody knows what was acknowledged, so all of it counts.
        """
        if not self._is_checkpoint_read:
            return _ENDLESS
        if self._state is None or int(path.stem) > self._state.active_base_offset:
            return 0
        is_active = int(path.stem) == self._state.active_base_offset
        return self._state.active_bytes if is_active else _ENDLESS

    def _segment(self, path: Path, end_offset: int, producers: ProducerCheck | None) -> int:
        """Returns where the segment's offsets end, as far as that is known."""
        vouched = self._vouched(path)
        least_bytes = 0 if self._replay.cut_at is not None else vouched
        short = []
        if (size := path.stat().st_size) < least_bytes:
            what = f"the checkpoint vouches for {vouched} bytes; {NOT_NOTICED}"
            short.append(self._find(path, size, "short segment", what))
        # Indexes are written before the log, and those of a closed segment after the start of the next one.
        is_index_done = self._is_stopped or (self._is_checkpoint_read and vouched == _ENDLESS)
        index = partial(IndexCheck, path, is_done=is_index_done)
        walk = _Walk(self._inspection, path, end_offset, least_bytes, producers, index)
        while walk.fault is not None and self._fault(path, walk, vouched, is_last=end_offset == NO_END):
            walk = _Walk(self._inspection, path, end_offset, least_bytes, producers, index)
        is_whole = walk.fault is None
        self._is_whole &= is_whole
        for finding in short if is_whole else ():
            finding.repaired = "whole again"
        wrong = [
            self._find(path.with_suffix(suffix), -1, "damaged index", why)
            for suffix, why in walk.index.wrong(
                is_sealed=end_offset != NO_END and is_index_done, is_whole=is_whole
            )
        ]
        if is_whole:
            self._inspection.rebuild(wrong, path)
        return walk.index.next_offset if is_whole else end_offset

    def _fault(self, path: Path, walk: _Walk, vouched: int, *, is_last: bool) -> bool:
        """Whether it was repaired, so that it pays to look at the rest of the segment."""
        fault = walk.fault
        assert fault is not None
        if is_last and vouched != _ENDLESS and fault.position >= vouched:
            what = f"{fault.why}; no checkpoint vouches for it"
            finding = self._find(path, fault.position, "torn tail", what, fault.offset)
            self._inspection.cut(finding, path, fault.position)
            return bool(finding.repaired)
        what = f"{fault.why}; the batch that begins at offset {fault.offset} cannot be read"
        finding = self._find(path, fault.position, "damaged batch", what, fault.offset)
        found = self._in_wal(path, walk, NO_END if is_last else path.stat().st_size)
        if found is None:
            can_start = self._is_checkpoint_read or self._is_first_run
            finding.what += f"; {FROM_REPLICA if can_start else FROM_NOTHING}"
            return False
        position, batch, source = found
        finding.what += f"; {source} still has it"
        if not self._inspection.is_repairing:
            return False
        self._inspection.overwrite(finding, path, position, batch, source)
        return True

    def _in_wal(self, path: Path, walk: _Walk, segment_end: int) -> tuple[int, bytes, str] | None:
        """Position, batch and WAL file, if what belongs at the fault stands there. The batch before it counts
        too: damage of an offset, which no checksum covers, may show only at the batch behind."""
        size = path.stat().st_size
        for position, offset in walk.suspects:
            limit = self._compacted_below
            held = self._wal.batch_at(self._place._replace(offset=offset))
            if held is None or limit is None or offset < limit:
                continue  # compaction may have rewritten the batch since
            batch, source = held
            end = position + len(batch)
            behind = self._inspection.read(path, end, HEADER_BYTES)
            if len(behind) == HEADER_BYTES:
                fits = read_header(behind).base_offset == read_header(batch).next_offset
            else:
                fits = size <= end <= segment_end
            if fits and self._inspection.read(path, position, len(batch)) != batch:
                return position, batch, source
        return None

    def _behind_the_wal(self, next_offset: int) -> None:
        """A segment gets a batch only once the WAL has it, so nothing in segments may be behind the WAL."""
        state = self._state
        if not self._is_known or not self._is_checkpoint_read or next_offset >= NO_END:
            return
        end = max(self._replay.end_max, state.log_end_offset if state is not None else 0)
        if next_offset > end:
            what = (
                f"segments have offsets up to {next_offset - 1}, the WAL and the checkpoint only up to "
                f"{end - 1}: the end of the WAL is lost, and the next start drops these records; other "
                "replicas may have them"
            )
            self._find(self._paths[-1], -1, "records behind the WAL", what, end)

    # --- producers ---------------------------------------------------------------------------------

    def _producers(self) -> ProducerCheck | None:
        if self._state is None or not self._state.producers:
            return None
        try:
            return ProducerCheck(self._state)
        except ValueError:
            return None  # told with the checkpoint

    def _tell_producers(self, producers: ProducerCheck, state: LogState) -> None:
        if not self._is_whole:
            return  # what cannot be read says nothing of producers
        limit = self._compacted_below
        known_from = NO_END if limit is None else max(state.log_start_offset, self._replay.start, limit)
        path = self._inspection.root / checkpoints.FILE_NAME
        for what, offset in producers.wrong(known_from):
            self._find(path, -1, "wrong producer state", what, offset)


class _Walk:
    """One reading of a segment, up to its first fault."""

    def __init__(
        self,
        inspection: Inspection,
        path: Path,
        end_offset: int,
        least_bytes: int,
        producers: ProducerCheck | None,
        index: Callable[[], IndexCheck],
    ) -> None:
        self.index = index()
        self._producers = producers
        self._before = int(path.stem)
        self._last: tuple[int, int] | None = None
        file = inspection.disk.open(path)
        try:
            size = path.stat().st_size
            self.fault: SegmentFault | None = find_fault(
                file.read_at, size, int(path.stem), end_offset, self._on_batch
            )
        finally:
            file.close()
        if self.fault is None and size < least_bytes:
            self.fault = SegmentFault(size, self._before, "the file ends here")

    def _on_batch(self, position: int, header: BatchHeader) -> None:
        self._last = position, self._before
        self._before = header.next_offset
        self.index.on_batch(position, header)
        if self._producers is not None:
            self._producers.on_batch(header)

    @property
    def suspects(self) -> list[tuple[int, int]]:
        """Position and offset of the batches that may be damaged: that at the fault, that before it."""
        fault = self.fault
        assert fault is not None
        return [(fault.position, fault.offset), *([self._last] if self._last is not None else [])]


def _cleaned_position(data: bytes) -> CleanedPosition | None:
    if len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        return None
    try:
        return msgspec.msgpack.decode(data[4:], type=CleanedPosition)
    except ValueError:
        return None
