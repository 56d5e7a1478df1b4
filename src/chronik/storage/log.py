"""A partition's log: segments on disk, a tail in memory, both behind one offset space.

A batch enters the tail and the WAL together. Once the WAL has it, `durable_end_offset` moves and the
listener hears of it; later the flusher writes it to its segment file, and the tail keeps it as a cache only.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from crc32c import crc32c

from chronik.model import StorageError, TopicPartition, invariant, violated
from chronik.records.batch import BatchHeader, Buffer, headers, stamp
from chronik.records.reader import read_marker
from chronik.storage.disk import Disk, Lane
from chronik.storage.epochs import EpochHistory
from chronik.storage.log_parts import (
    IGNORE,
    AppendSink,
    Dirty,
    FileWork,
    LogConfig,
    LogListener,
    Preamble,
    TailBatch,
    WalWaiter,
    WritePlan,
    kept,
)
from chronik.storage.producer_state import ProducerStates
from chronik.storage.retirement import Retirement
from chronik.storage.segment import Segment, segment_name
from chronik.storage.swap import settle
from chronik.storage.wal import Wal
from chronik.storage.wal_format import EntryKind

__all__ = ["LogConfig", "LogListener", "PartitionLog", "TailBatch", "WritePlan", "delete_segments"]

log = logging.getLogger(__name__)


class PartitionLog:
    __slots__ = (
        "_appends",
        "_dirty",
        "_extent",
        "_file_work",
        "_listeners",
        "_preamble",
        "_retired",
        "_segments",
        "_wal",
        "config",
        "deleted",
        "directory",
        "disk",
        "durable_end_offset",
        "epochs",
        "flushed_offset",
        "fresh",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "retirement",
        "tail",
        "topic_id",
        "topic_id_bytes",
        "tp",
        "truncations",
    )

    def __init__(
        self,
        *,
        tp: TopicPartition,
        topic_id: UUID,
        directory: Path,
        disk: Disk,
        wal: Wal | None,
        dirty: Dirty,
        config: LogConfig,
        log_start_offset: int = 0,
        log_end_offset: int = 0,
        extent: tuple[int, int] = (0, 0),
        epochs: Iterable[tuple[int, int]] = (),
        producers: ProducerStates | None = None,
        is_new: bool = True,
    ) -> None:
        """`extent` is base offset and size of the active segment at the last checkpoint: files beyond it are
        not trusted, the WAL is. A log that `is_new` announces its name in the WAL before its first append."""
        self.tp = tp
        self.topic_id = topic_id
        self.topic_id_bytes = topic_id.bytes
        self.directory = directory
        self.disk = disk
        self._wal = wal
        self._dirty = dirty
        self.config = config
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        """The offset the next record gets."""
        self.durable_end_offset = log_end_offset
        """Everything before is synced in the WAL (or in segments below the checkpoint)."""
        self.flushed_offset = log_end_offset
        """Everything before is in segment files, synced or not."""
        self.epochs = EpochHistory(epochs)
        self.producers = producers
        self._extent = extent
        self.tail: deque[TailBatch] = deque()
        self._segments: list[Segment] | None = [self._new_segment(0)] if is_new else None
        self.fresh = is_new
        """Nothing of this log is on disk: whatever its directory holds belongs to a former topic."""
        self._retired: list[Segment] = []
        self.retirement = Retirement(extent[0])
        self._listeners: list[LogListener] = []
        self._appends = AppendSink(self)
        self._file_work = FileWork(disk, tp)
        self._preamble = Preamble(tp, topic_id.bytes, is_known=not is_new)
        self.deleted = False
        self.truncations = 0
        """Goes up when the end is cut: a flush that began before then says nothing about what is flushed."""

    def attach(self, wal: Wal) -> None:
        """Recovery is over: appends may begin."""
        invariant(self._wal is None, f"{self.tp} has a WAL already")
        self._wal = wal

    def subscribe(self, listener: LogListener) -> None:
        self._listeners.append(listener)

    # --- segments ----------------------------------------------------------------------------------

    @property
    def segments(self) -> list[Segment]:
        """Oldest first; the last one takes appends. Read from the directory when first needed."""
        if self._segments is None:
            self._segments = self._load_segments()
        return self._segments

    @property
    def is_loaded(self) -> bool:
        return self._segments is not None

    async def load(self) -> None:
        """Read the directory beside the loop, if nobody has yet. What follows behind finds it done."""
        if self._segments is None:
            found = await self.disk.run(Lane.BACKGROUND, self._load_segments)
            if self._segments is None:
                self._segments = found

    def active_extent(self) -> tuple[int, int]:
        """Base offset and size of the active segment, without touching files."""
        if self._segments is None:
            return self._extent
        active = self._segments[-1]
        return active.base_offset, active.size_bytes

    def _load_segments(self) -> list[Segment]:
        """Blocking. A disk that refuses is tried again when the segments are needed next."""
        try:
            return self._found_segments()
        except OSError as error:
            raise StorageError(f"the files of {self.tp} cannot be opened: {error}") from error

    def _found_segments(self) -> list[Segment]:
        """Find the files, cut them to what the checkpoint vouches for, name what is missing."""
        settle(self.disk, self.directory)
        active_base, active_bytes = self._extent
        interval = self.config.index_interval_bytes
        found = []
        for name in self.disk.list(self.directory):
            if not name.endswith(".log") or not name[:-4].isdigit():
                continue
            segment = Segment.load(self.disk, self.directory, int(name[:-4]), index_interval_bytes=interval)
            if segment.base_offset > active_base:
                segment.delete()
            else:
                found.append(segment)
        while len(found) > 1 and found[1].base_offset <= self.log_start_offset:
            found.pop(0).delete()  # its time had come before the last stop
        if found and found[-1].base_offset == active_base:
            self._settle_active(found[-1], active_bytes)
        else:
            if active_bytes > 0 and self.log_end_offset > self.log_start_offset:
                log.error(
                    "%s: segment %s is missing; the records that only it held are lost on this disk",
                    self.tp,
                    self.directory / segment_name(active_base),
                )
            found.append(self._new_segment(max(self.log_end_offset, active_base)))
        return found

    def _settle_active(self, segment: Segment, active_bytes: int) -> None:
        if segment.written_bytes > active_bytes:
            segment.truncate(active_bytes, self.log_end_offset)
        elif segment.written_bytes < active_bytes:
            end = segment.sound_end()
            log.error(
                "%s: %s has %d sound bytes, %d were synced; the records behind them are lost on this disk",
                self.tp,
                segment.path,
                end,
                active_bytes,
            )
            segment.truncate(end, self.log_end_offset)
        else:
            _ = segment.offset_index  # appends go on here: a damaged index is made anew now

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment.create(
            self.disk, self.directory, base_offset, index_interval_bytes=self.config.index_interval_bytes
        )

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def segment_for(self, offset: int) -> int:
        """Index of the segment that holds `offset`, or would."""
        return max(bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1, 0)

    # --- appending ---------------------------------------------------------------------------------

    def append(
        self, batch: bytearray | memoryview, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> int:
        """Leader: give a checked batch the next offsets and queue it for the WAL. Returns its base offset."""
        base_offset = self.log_end_offset
        stamp(batch, 0, base_offset, leader_epoch)
        stamped = tuple.__new__(BatchHeader, (base_offset, header[1], leader_epoch, *header[3:]))
        self._accept(stamped, batch, now_ms)
        self._to_wal(base_offset, batch)
        return base_offset

    def append_replicated(self, batches: Buffer, now_ms: int) -> None:
        """Follower: take batches as the leader stamped them; they continue this log."""
        view = memoryview(batches)
        first = self.log_end_offset
        for position, header in headers(view):
            if header.base_offset < self.log_end_offset:
                violated(f"{self.tp}: batch at {header.base_offset} overlaps the end {self.log_end_offset}")
            self._accept(header, view[position : position + header.size_bytes], now_ms)
        if self.log_end_offset > first:
            self._to_wal(first, batches)

    def _to_wal(self, offset: int, payload: Buffer) -> None:
        wal = self._wal
        invariant(wal is not None, "a log that is only being recovered takes no appends")
        assert wal is not None
        self._preamble.write(wal)
        wal.append(
            EntryKind.APPEND,
            self.topic_id_bytes,
            self.tp.partition,
            offset,
            payload,
            self._appends,
            self.log_end_offset,
        )

    def restore(self, batches: Buffer, now_ms: int) -> None:
        """Recovery: take batches that stand in the WAL already."""
        view = memoryview(batches)
        for position, header in headers(view):
            if header.base_offset >= self.log_end_offset:
                self._accept(header, view[position : position + header.size_bytes], now_ms)
        self.durable_end_offset = self.log_end_offset

    def _accept(self, header: BatchHeader, batch: Buffer, now_ms: int) -> None:
        """Make a batch the new end of the tail. No await anywhere: offsets follow each other."""
        segment = self.segments[-1]
        size = len(batch)
        next_offset = header.base_offset + header.last_offset_delta + 1
        if segment.size_bytes and self._is_full(segment, header, size, now_ms):
            segment = self.roll(header.base_offset)
        if segment.created_ms < 0:
            segment.created_ms = now_ms
        position = segment.note_append(header, next_offset - 1, size)
        self.epochs.note(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            self._note_producer(header, batch)
        self.tail.append(TailBatch(header.base_offset, next_offset, position, kept(batch), segment))
        self._dirty.note_bytes(size)
        self.log_end_offset = next_offset

    def _note_producer(self, header: BatchHeader, batch: Buffer) -> None:
        if self.producers is None:
            self.producers = ProducerStates()
        if not header.is_control:
            self.producers.append(
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                base_offset=header.base_offset,
                last_offset=header.last_offset,
                is_transactional=header.is_transactional,
                timestamp_ms=header.max_timestamp,
            )
            return
        marker = read_marker(batch)
        if marker is not None:
            self.producers.append_marker(
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                offset=header.base_offset,
                is_commit=marker.is_commit,
                timestamp_ms=header.max_timestamp,
            )

    def _is_full(self, segment: Segment, header: BatchHeader, size: int, now_ms: int) -> bool:
        config = self.config
        return (
            segment.size_bytes + size > config.segment_bytes
            or header.last_offset - segment.base_offset > 0x7FFFFFFF
            or (segment.is_index_due and segment.index_bytes > config.segment_index_bytes)
            or (segment.created_ms >= 0 and now_ms - segment.created_ms >= self.segment_age_max_ms(segment))
        )

    def segment_age_max_ms(self, segment: Segment) -> int:
        """segment.ms, less a share of segment.jitter.ms that differs from segment to segment."""
        config = self.config
        if config.segment_jitter_ms == 0:
            return config.segment_ms
        share = crc32c(f"{self.tp}:{segment.base_offset}".encode()) / 0xFFFFFFFF
        return config.segment_ms - int(share * min(config.segment_jitter_ms, config.segment_ms))

    def roll(self, base_offset: int) -> Segment:
        """End the active segment and start one at `base_offset`."""
        self._retired.append(self.segments[-1])
        segment = self._new_segment(base_offset)
        self.segments.append(segment)
        self._dirty.mark(self)
        return segment

    # --- what the WAL reports ------------------------------------------------------------------------

    def committed(self, token: int) -> None:
        self.durable_end_offset = token
        self._file_work.begin()
        self._dirty.mark(self)
        for listener in self._listeners:
            listener.on_durable(token)

    def rejected(self, token: int, error: StorageError) -> None:
        """Nothing behind the durable end was written, and nobody was told it had been: take it back."""
        if token <= self.durable_end_offset or self.log_end_offset == self.durable_end_offset:
            return
        self._cut_tail(self.durable_end_offset)
        for listener in self._listeners:
            listener.on_rejected(self.durable_end_offset, error)

    def _cut_tail(self, offset: int) -> None:
        while self.tail and self.tail[-1].next_offset > offset:
            batch = self.tail.pop()
            batch.segment.forget_from(batch.position, batch.base_offset)
            self._dirty.note_bytes(-len(batch.view))
        while len(self.segments) > 1 and self.segments[-1].base_offset > offset:
            gone = self.segments.pop()
            self._retired = [segment for segment in self._retired if segment is not self.segments[-1]]
            invariant(gone.written_bytes == 0, f"{self.tp}: a segment behind the durable end was written")
        self.log_end_offset = offset
        self.epochs.truncate_end(offset)
        if self.producers is not None and not self.producers.truncate_to(offset):
            self.producers.forget_from(offset)

    # --- what the flusher asks -----------------------------------------------------------------------

    def plan_write(self) -> WritePlan | None:
        """Durable batches that no file has yet, grouped into writes. Runs on the loop."""
        runs: list[tuple[Segment, int, list[Buffer]]] = []
        next_offset = self.flushed_offset
        start = bisect_right(self.tail, self.flushed_offset, key=lambda batch: batch.base_offset)
        start = max(start - 1, 0)
        for place in range(start, len(self.tail)):
            batch = self.tail[place]
            if batch.next_offset <= self.flushed_offset:
                continue
            if batch.next_offset > self.durable_end_offset:
                break
            if runs and runs[-1][0] is batch.segment:
                runs[-1][2].append(batch.view)
            else:
                runs.append((batch.segment, batch.position, [batch.view]))
            next_offset = batch.next_offset
        sealed = [segment for segment in self._retired if self._seals_below(segment, next_offset)]
        self._retired = [segment for segment in self._retired if segment not in sealed]
        if not runs and not sealed:
            return None
        return WritePlan(runs, sealed, next_offset, self.truncations)

    def _seals_below(self, segment: Segment, offset: int) -> bool:
        following = next((s for s in self.segments if s.base_offset > segment.base_offset), None)
        return following is None or following.base_offset <= offset

    def give_back(self, plan: WritePlan) -> None:
        """A write failed: its segments still have to be sealed."""
        self._retired = plan.sealed + self._retired

    def note_flushed(self, plan: WritePlan) -> None:
        if plan.truncations == self.truncations:
            self.flushed_offset = max(self.flushed_offset, plan.next_offset)

    def drop_cached(self) -> int:
        """Let go of the oldest batch of the tail if a file has it; returns the bytes freed."""
        if self.tail and self.tail[0].next_offset <= self.flushed_offset:
            return len(self.tail.popleft().view)
        return 0

    # --- ends --------------------------------------------------------------------------------------

    async def log_to_wal(self, kind: EntryKind, offset: int, payload: bytes = b"") -> None:
        """Queue an entry that is no append and wait until it is on disk."""
        wal = self._wal
        if wal is None:
            raise StorageError(f"{self.tp} is not open for writing")
        waiter = WalWaiter()
        wal.append(kind, self.topic_id_bytes, self.tp.partition, offset, payload, waiter, 0)
        await waiter.future

    async def advance_start(self, offset: int) -> None:
        """Forget everything before `offset` for good (delete-records, retention).

        The files of segments that lie wholly before it go later: `LogStore.sweep`.
        """
        if offset <= self.log_start_offset:
            return
        await self.load()
        await self.log_to_wal(EntryKind.LOG_START, offset)
        self.doom(self.apply_start(offset))

    def apply_start(self, offset: int) -> list[Segment]:
        """Move the start in memory; returns the segments that lie wholly before it, for deletion."""
        if offset <= self.log_start_offset:
            return []
        self.log_start_offset = offset
        self.epochs.truncate_start(offset)
        if self.producers is not None:
            self.producers.advance_log_start(offset)
        return self.take_before_start()

    def take_before_start(self) -> list[Segment]:
        """Segments that are flushed and lie wholly before the start leave the log."""
        keep = 0
        segments = self.segments
        limit = min(self.log_start_offset, self.flushed_offset)
        while keep + 1 < len(segments) and segments[keep + 1].base_offset <= limit:
            keep += 1
        gone, self._segments = segments[:keep], segments[keep:]
        self._retired = [segment for segment in self._retired if segment not in gone]
        while self.tail and self.tail[0].next_offset <= limit:
            self.tail.popleft()
        return gone

    def doom(self, segments: Iterable[Segment]) -> None:
        """Out of the log already: their files go after file.delete.delay.ms, so that reads under way end."""
        now = asyncio.get_running_loop().time()
        self.retirement.doom(segments, now + self.config.file_delete_delay_ms / 1000)

    def replace_segments(self, old: Sequence[Segment], new: Segment | None, end_offset: int) -> None:
        """Compaction put `new` in the place of these neighbours before `end_offset`, in the files already."""
        while self.tail and self.tail[0].next_offset <= end_offset:
            self.tail.popleft()  # what memory has of them is not what they are now
        place = next((i for i, segment in enumerate(self.segments) if segment in old), None)
        self.retirement.forget(old)
        if place is not None:
            kept = [segment for segment in self.segments if segment not in old]
            self._segments = kept[:place] + ([new] if new is not None else []) + kept[place:]
            if new is not None and self.log_end_offset < end_offset:  # cut meanwhile (unclean election)
                found = new.locate(self.log_end_offset)
                if found is not None:
                    new.truncate(found[0], self.log_end_offset)
        elif new is not None:
            self.doom([new])  # the start moved past them meanwhile

    def truncate(self, offset: int) -> None:
        """Follower: drop everything from `offset` on. Durable in the WAL's order; files follow behind.

        What was under way and stays is durable once the WAL has the cut.
        """
        if offset >= self.log_end_offset:
            return
        wal = self._wal
        invariant(wal is not None, "a log that is only being recovered is cut, not truncated")
        assert wal is not None
        self._file_work.add(self._cut(offset))
        end = self.log_end_offset
        wal.append(
            EntryKind.TRUNCATE, self.topic_id_bytes, self.tp.partition, offset, b"", self._appends, end
        )

    def restart_at(self, offset: int) -> None:
        """Follower too far behind: drop everything and go on at `offset`."""
        wal = self._wal
        assert wal is not None
        gone = self.reset(offset)
        self._file_work.add(partial(delete_segments, gone))
        number = self.truncations

        def restarted() -> None:
            if self.truncations == number:  # else that cut is waited for, too
                self._file_work.begin()

        self._preamble.restart(offset, restarted)
        self._preamble.write(wal)

    def cut(self, offset: int) -> None:
        """Blocking, for recovery: drop everything from `offset` on, in memory and in files."""
        if offset < self.log_end_offset:
            self._cut(offset)()

    def _cut(self, offset: int) -> Callable[[], None]:
        """Drop everything from `offset` on in memory; returns the blocking work for the files."""
        self.truncations += 1
        self._ignore_appends_under_way()
        self.retirement.forget_checkpoints()
        while self.tail and self.tail[-1].next_offset > offset:
            batch = self.tail.pop()
            if batch.next_offset > self.flushed_offset:
                self._dirty.note_bytes(-len(batch.view))
        gone = []
        while len(self.segments) > 1 and self.segments[-1].base_offset >= offset:
            gone.append(self.segments.pop())
            self._retired = [segment for segment in self._retired if segment is not self.segments[-1]]
        if self.segments[-1].base_offset > offset:  # its predecessors are gone from the disk
            gone.append(self.segments.pop())
            self.segments.append(self._new_segment(offset))
        segment = self.segments[-1]
        if self.tail and self.tail[-1].segment is segment:
            last = self.tail[-1]
            trim = segment.cut(last.position + len(last.view), offset)
        else:
            trim = segment.cut(segment.end_before(offset), offset)
        self.log_end_offset = max(offset, self.log_start_offset)
        self.flushed_offset = min(self.flushed_offset, self.log_end_offset)
        self.durable_end_offset = min(self.durable_end_offset, self.log_end_offset)
        self.epochs.truncate_end(offset)
        if self.producers is not None and not self.producers.truncate_to(offset):
            self.producers.forget_from(offset)

        def work() -> None:
            delete_segments(gone)
            trim()

        return work

    def _ignore_appends_under_way(self) -> None:
        self._appends.log = IGNORE
        self._appends = AppendSink(self)

    def reset(self, offset: int) -> list[Segment]:
        """Empty the log and start it anew at `offset`; returns the segments to delete."""
        gone = [*self.retirement.clear(), *self.segments]
        self.truncations += 1
        self._ignore_appends_under_way()
        for batch in self.tail:
            if batch.next_offset > self.flushed_offset:
                self._dirty.note_bytes(-len(batch.view))
        self.tail.clear()
        self._retired = []
        self._segments = [self._new_segment(offset)]
        self.log_start_offset = self.log_end_offset = offset
        self.durable_end_offset = self.flushed_offset = offset
        self.epochs = EpochHistory()
        self.producers = None
        return gone

    @property
    def is_on_disk(self) -> bool:
        """Whether the WAL or a checkpoint knows this log."""
        return self._preamble.is_known

    def discard(self) -> None:
        """The log is deleted: what no file has yet counts no more. Writes under way do no harm."""
        self.deleted = True
        for batch in self.tail:
            if batch.next_offset > self.flushed_offset:
                self._dirty.note_bytes(-len(batch.view))
        self.tail.clear()

    def close(self) -> None:
        for segment in (*(self._segments or ()), *self.retirement.doomed):
            segment.close()


def delete_segments(segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.delete()
