"""A partition's log: segments on disk, a tail in memory, both behind one offset space.

A batch enters the tail and the WAL together. Once the WAL has it, `durable_end_offset` moves and the
listener hears of it; later the flusher writes it to its segment file, and the tail keeps it as a cache only.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from chronik.client_state import ClientState, Held
from chronik.model import StorageError, TopicPartition, invariant, violated
from chronik.records.batch import OVERHEAD_BYTES, BatchHeader, Buffer, headers, stamp
from chronik.storage.disk import Disk, IoThread
from chronik.storage.epochs import EpochHistory
from chronik.storage.log_parts import (
    COPIED_BYTES_MAX,
    AppendSink,
    Dirty,
    FileWork,
    LogConfig,
    LogListener,
    Preamble,
    SegmentDamage,
    TailBatch,
    WalWaiter,
    WritePlan,
    delete_segments,
    runs_to_write,
)
from chronik.storage.producer_state import ProducerStates
from chronik.storage.relaxed import Relaxed
from chronik.storage.retirement import Retirement
from chronik.storage.segment import Segment
from chronik.storage.segment_loading import CheckpointedLog, load_segments
from chronik.storage.wal import Wal
from chronik.storage.wal_format import WalEntryKind

__all__ = ["LogConfig", "LogListener", "PartitionLog", "TailBatch", "WritePlan", "delete_segments"]


_APPEND: Final = WalEntryKind.APPEND
_RECOVERING: Final = "a log that is only being recovered takes no appends"


class PartitionLog:
    __slots__ = (
        "_appends",
        "_dirty",
        "_extent",
        "_file_work",
        "_listeners",
        "_loading",
        "_preamble",
        "_producer_bytes",
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
        "relaxed",
        "retirement",
        "synced_end_offset",
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
        producers: bytes = b"",
        producer_bytes: Held | None = None,
        is_new: bool = True,
    ) -> None:
        """`extent`: base offset and size of the active segment at the last checkpoint. Recovery drops segment
        bytes beyond it and replays the WAL. A log that `is_new` writes OPEN to the WAL before it appends."""
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
        """Every batch before this offset is as durable as the topic promises: synced, or, in a relaxed log,
        at least written to the WAL's file."""
        self.synced_end_offset = log_end_offset
        """Every batch before this offset is synced, in the WAL or in segments below the checkpoint."""
        self.relaxed = Relaxed()
        self.flushed_offset = log_end_offset
        """Every batch before this offset is in a segment file, synced or not."""
        self.epochs = EpochHistory(epochs)
        self._producer_bytes = producer_bytes or ClientState().producer_ids.hold()
        self.producers: ProducerStates | None = None
        if producers:
            self.producers = ProducerStates.restore(producers, self._producer_bytes)
        self._extent = extent
        self.tail: deque[TailBatch] = deque()
        self._segments: list[Segment] | None = [self._new_segment(0)] if is_new else None
        self._loading = threading.Lock()
        """The loop and I/O threads load the segments when they first need them. If two did so at once, an
        append noted in the list of the one would be unknown to the list of the other, and written over."""
        self.fresh = is_new
        """Whether this log has no files yet. Files found in its directory then belong to a deleted topic."""
        self._retired: list[Segment] = []
        self.retirement = Retirement(extent[0])
        self._listeners: list[LogListener] = []
        self._file_work = FileWork(disk, tp)
        self._appends = AppendSink(self, self._file_work, dirty, self._listeners)
        self._preamble = Preamble(tp, topic_id.bytes, is_known=not is_new)
        self.deleted = False
        self.truncations = 0
        """Number of truncations. A flush that began before the last one must not move `flushed_offset`."""

    def attach(self, wal: Wal) -> None:
        """Recovery is over: appends may begin. The WAL comes late because its first sequence number and its
        files follow from the replay, and the replay is applied to this log."""
        invariant(self._wal is None, f"{self.tp} has a WAL already")
        self._wal = wal

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config

    def subscribe(self, listener: LogListener) -> None:
        self._listeners.append(listener)

    def unsubscribe(self, listener: LogListener) -> None:
        self._listeners.remove(listener)

    def will_be_repaired(self, damage: SegmentDamage) -> bool:
        """Whether another replica has what this disk lost."""
        return any(listener.on_damaged(damage) for listener in self._listeners)

    # --- segments ----------------------------------------------------------------------------------

    @property
    def segments(self) -> list[Segment]:
        """Oldest first; the last one takes appends. Read from the directory when first needed."""
        if self._segments is None:
            with self._loading:
                if self._segments is None:
                    self._segments = self._load_segments()
        return self._segments

    @property
    def is_loaded(self) -> bool:
        return self._segments is not None

    async def load(self) -> None:
        """Load the segments in an I/O thread, unless they are loaded already."""
        if self._segments is None:
            await self.disk.run(IoThread.BACKGROUND, lambda: self.segments)

    def active_extent(self) -> tuple[int, int]:
        """Base offset and size of the active segment, without touching files."""
        if self._segments is None:
            return self._extent
        active = self._segments[-1]
        return active.base_offset, active.size_bytes

    def _load_segments(self) -> list[Segment]:
        """Blocking. If the disk fails, the next use of `segments` tries again."""
        known = CheckpointedLog(
            self.tp,
            self.directory,
            self._extent,
            self.log_start_offset,
            self.log_end_offset,
            self.config.index_interval_bytes,
        )
        return load_segments(self.disk, known)

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
        wal = self._wal
        if wal is None:
            violated(_RECOVERING)
        base_offset = self.log_end_offset
        stamp(batch, 0, base_offset, leader_epoch)
        stamped = tuple.__new__(BatchHeader, (base_offset, header[1], leader_epoch, *header[3:]))
        self._accept(stamped, batch, now_ms)
        if self._preamble.is_due or self.relaxed.must_write_again:
            self._write_first(wal, before=base_offset)
        end = self.log_end_offset
        within = self.relaxed.sync_within(self, header.attributes) if self.config.sync_within_seconds else 0.0
        wal.append(
            _APPEND, self.topic_id_bytes, self.tp.partition, base_offset, batch, self._appends, end, within
        )
        return base_offset

    def append_replicated(
        self, batches: Buffer, found: Iterable[tuple[int, BatchHeader]], now_ms: int
    ) -> None:
        """Take batches as their leader stamped them; they continue this log. `found` are their positions and
        headers. To the WAL they are one entry."""
        wal = self._wal
        if wal is None:
            violated(_RECOVERING)
        view = memoryview(batches)
        first = self.log_end_offset
        attributes = 0
        for position, header in found:
            if header.base_offset < self.log_end_offset:
                violated(f"{self.tp}: batch at {header.base_offset} overlaps the end {self.log_end_offset}")
            attributes |= header.attributes
            end = position + header.batch_length + OVERHEAD_BYTES
            self._accept(header, view[position:end], now_ms)
        if self.log_end_offset == first:
            return
        if self._preamble.is_due or self.relaxed.must_write_again:
            self._write_first(wal, before=first)
        end = self.log_end_offset
        within = self.relaxed.sync_within(self, attributes) if self.config.sync_within_seconds else 0.0
        wal.append(
            _APPEND, self.topic_id_bytes, self.tp.partition, first, batches, self._appends, end, within
        )

    def _write_first(self, wal: Wal, before: int) -> None:
        """What has to stand in the WAL before the next entry of this log: its name, and what is in doubt.

        Without the latter recovery would find a gap: the next entry goes to another file.
        """
        if self._preamble.is_due:
            self._preamble.write(wal)
        if not self.relaxed.must_write_again:
            return
        self.relaxed.writes_again()
        kind, of, sink = _APPEND, (self.topic_id_bytes, self.tp.partition), self._appends
        for batch in self.tail:
            if self.synced_end_offset < batch.next_offset <= min(before, self.durable_end_offset):
                wal.append(kind, *of, batch.base_offset, batch.view, sink, batch.next_offset)

    def write_again(self) -> None:
        """Give the WAL again what is in doubt, unless it has it already."""
        if self.relaxed.must_write_again and self._wal is not None and not self.deleted:
            self._write_first(self._wal, before=self.log_end_offset)

    def restore(self, batches: Buffer, now_ms: int) -> None:
        """Recovery: take batches that stand in the WAL already."""
        view = memoryview(batches)
        for position, header in headers(view):
            if header.base_offset >= self.log_end_offset:
                self._accept(header, view[position : position + header.size_bytes], now_ms)
        self.durable_end_offset = self.synced_end_offset = self.log_end_offset

    def _accept(self, header: BatchHeader, batch: Buffer, now_ms: int) -> None:
        """Make a batch the new end of the tail. No await anywhere: offsets follow each other."""
        segment = (self._segments or self.segments)[-1]
        size = len(batch)
        next_offset = header.base_offset + header.last_offset_delta + 1
        if segment.size_bytes and self._is_full(segment, header, size, now_ms):
            segment = self.roll(header.base_offset)
        position = segment.note_append(header, next_offset - 1, size, now_ms)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.note(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            if self.producers is None:
                self.producers = ProducerStates(self._producer_bytes)
            self.producers.note_batch(header, batch, now_ms)
        kept = bytes(batch) if size <= COPIED_BYTES_MAX else batch
        self.tail.append(TailBatch(header.base_offset, next_offset, position, kept, segment))
        self._dirty.note_bytes(size)
        self.log_end_offset = next_offset

    def _is_full(self, segment: Segment, header: BatchHeader, size: int, now_ms: int) -> bool:
        """Whether the batch needs a new segment. Runs for every batch, so it avoids calls."""
        config = self.config
        if (
            segment.size_bytes + size > config.segment_bytes
            or header.base_offset + header.last_offset_delta - segment.base_offset > 0x7FFFFFFF
            or (
                segment.bytes_since_index > segment.index_interval_bytes  # the batch gets an index entry
                and segment.index_bytes > config.segment_index_bytes
            )
        ):
            return True
        age_max_ms = config.segment_ms
        if config.segment_jitter_ms:
            age_max_ms = config.segment_age_max_ms(self.tp, segment.base_offset)
        return segment.created_ms >= 0 and now_ms - segment.created_ms >= age_max_ms

    def roll(self, base_offset: int) -> Segment:
        """End the active segment and start one at `base_offset`."""
        self._retired.append(self.segments[-1])
        segment = self._new_segment(base_offset)
        self.segments.append(segment)
        self._dirty.mark(self)
        return segment

    # --- what the WAL reports ------------------------------------------------------------------------

    def rejected(self, token: int, error: StorageError) -> None:
        """A WAL round failed: drop the batches behind the durable end. None of them was acknowledged."""
        self.relaxed.doubt(self)
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
        self._file_work.note_cut(offset)
        self.relaxed.cut(offset)
        self.epochs.truncate_end(offset)
        if self.producers is not None and not self.producers.truncate_to(offset):
            self.producers.forget_from(offset)
        self._note_unflushed(self.segments[-1])
        self.disk.submit(IoThread.BACKGROUND, self.segments[-1].note_written, lambda _result, _error: None)

    def _note_unflushed(self, segment: Segment) -> None:
        for batch in self.tail:
            if batch.segment is segment and batch.next_offset > self.flushed_offset:
                segment.note_timestamp(batch.header)

    # --- what the flusher asks -----------------------------------------------------------------------

    def make_directory(self) -> None:
        """Blocking, before a write: files that a deleted topic of this name left go."""
        if self.fresh:
            self.disk.remove_tree(self.directory)
            self.fresh = False
        if not self.disk.exists(self.directory):
            self.disk.make_directory(self.directory)

    def plan_write(self) -> WritePlan | None:
        """Synced batches that no file has yet, grouped into writes. Runs on the loop."""
        runs, next_offset = runs_to_write(self.tail, self.flushed_offset, self.synced_end_offset)
        sealed = [segment for segment in self._retired if self._seals_below(segment, next_offset)]
        self._retired = [segment for segment in self._retired if segment not in sealed]
        if not runs:
            self.flushed_offset = next_offset
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
        """Drop the oldest batch of the tail if it is in a segment file. Returns the bytes freed."""
        if self.tail and self.tail[0].next_offset <= self.flushed_offset:
            return len(self.tail.popleft().view)
        return 0

    # --- ends --------------------------------------------------------------------------------------

    async def log_to_wal(self, kind: WalEntryKind, offset: int, payload: bytes = b"") -> None:
        """Queue an entry that is no append and wait until it is on disk."""
        wal = self._wal
        if wal is None:
            raise StorageError(f"{self.tp} is not open for writing")
        waiter = WalWaiter()
        if self.relaxed.must_write_again:
            self._write_first(wal, before=self.log_end_offset)
        wal.append(kind, self.topic_id_bytes, self.tp.partition, offset, payload, waiter, 0)
        await waiter.future

    async def advance_start(self, offset: int) -> None:
        """Forget everything before `offset` for good (delete-records, retention).

        The files of segments that lie wholly before it go later: `LogStore.sweep`.
        """
        if offset <= self.log_start_offset:
            return
        await self.load()
        await self.log_to_wal(WalEntryKind.LOG_START, offset)
        if offset > self.log_end_offset:
            return  # the log was cut meanwhile; the leader will send the new log start
        self.schedule_delete(self.apply_start(offset))

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

    def schedule_delete(self, segments: Iterable[Segment]) -> None:
        """Delete the files of removed segments after file.delete.delay.ms, so that current reads can end."""
        now = asyncio.get_running_loop().time()
        self.retirement.schedule_delete(segments, now + self.config.file_delete_delay_ms / 1000)

    def replace_segments(self, old: Sequence[Segment], new: Segment | None, end_offset: int) -> None:
        """Compaction has swapped the files: use `new` in place of the adjacent segments `old`."""
        while self.tail and self.tail[0].next_offset <= end_offset:
            self.tail.popleft()  # the tail still has the batches from before the compaction
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
            self.schedule_delete([new])  # the start moved past them meanwhile

    def truncate(self, offset: int) -> None:
        """Follower: drop everything from `offset` on. The files are cut once the WAL has the TRUNCATE entry.

        Appends before `offset` that were still on their way to the WAL are durable when that entry is.
        """
        if offset >= self.log_end_offset:
            return
        wal = self._wal
        invariant(wal is not None, "a log that is only being recovered is cut, not truncated")
        assert wal is not None
        self._file_work.add(self._cut(offset), offset)
        end = self.log_end_offset
        if self.relaxed.must_write_again:
            self._write_first(wal, before=end)
        wal.append(
            WalEntryKind.TRUNCATE, self.topic_id_bytes, self.tp.partition, offset, b"", self._appends, end
        )

    def restart_at(self, offset: int) -> None:
        """Follower too far behind: drop everything and go on at `offset`."""
        wal = self._wal
        assert wal is not None
        gone = self.reset(offset)
        self._file_work.add(partial(delete_segments, gone), 0)
        number = self.truncations

        def restarted() -> None:
            if self.truncations == number:  # else a later cut starts the file work
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
        self._appends = self._appends.retire()
        self.retirement.forget_checkpoints()
        while self.tail and self.tail[-1].next_offset > offset:
            batch = self.tail.pop()
            if batch.next_offset > self.flushed_offset:
                self._dirty.note_bytes(-len(batch.view))
        gone = []
        while len(self.segments) > 1 and self.segments[-1].base_offset >= offset:
            gone.append(self.segments.pop())
            self._retired = [segment for segment in self._retired if segment is not self.segments[-1]]
        if self.segments[-1].base_offset > offset:  # the segments before it are missing on disk
            gone.append(self.segments.pop())
            self.segments.append(self._new_segment(offset))
        segment = self.segments[-1]
        if self.tail and self.tail[-1].segment is segment:
            last = self.tail[-1]
            trim = segment.cut(last.position + len(last.view), offset)
        else:
            trim = segment.cut(segment.end_before(offset), offset)
        self._note_unflushed(segment)  # `trim` does so for those in the file
        self.log_end_offset = max(offset, self.log_start_offset)
        self.flushed_offset = min(self.flushed_offset, self.log_end_offset)
        self.durable_end_offset = min(self.durable_end_offset, self.log_end_offset)
        self.synced_end_offset = min(self.synced_end_offset, self.log_end_offset)
        self.relaxed.cut(self.log_end_offset)
        self.epochs.truncate_end(offset)
        if self.producers is not None and not self.producers.truncate_to(offset):
            self.producers.forget_from(offset)

        def work() -> None:
            delete_segments(gone)
            trim()

        return work

    def reset(self, offset: int) -> list[Segment]:
        """Empty the log and start it again at `offset`; returns the segments to delete."""
        gone = [*self.retirement.clear(), *self.segments]
        self.truncations += 1
        self._appends = self._appends.retire()
        self._drop_tail()
        self._retired = []
        self._segments = [self._new_segment(offset)]
        self.log_start_offset = self.log_end_offset = offset
        self.durable_end_offset = self.synced_end_offset = self.flushed_offset = offset
        self.relaxed = Relaxed()
        self.epochs = EpochHistory()
        self.forget_producers()
        return gone

    def forget_producers(self) -> None:
        self.producers = None
        self._producer_bytes.add(-self._producer_bytes.bytes)

    def _drop_tail(self) -> None:
        flushed = self.flushed_offset
        self._dirty.note_bytes(-sum(len(one.view) for one in self.tail if one.next_offset > flushed))
        self.tail.clear()

    @property
    def is_on_disk(self) -> bool:
        """Whether the WAL or a checkpoint knows this log."""
        return self._preamble.is_known

    def discard(self) -> None:
        """The log is deleted: drop its tail, so that unflushed bytes are no longer counted."""
        self.deleted = True
        self._producer_bytes.release()
        self._drop_tail()

    def close(self) -> None:
        for segment in (*(self._segments or ()), *self.retirement.pending_delete):
            segment.close()
