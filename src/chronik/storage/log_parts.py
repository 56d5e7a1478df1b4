"""What a partition's log is made of, and whom it talks to."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from crc32c import crc32c

from chronik.model import StorageError, TopicPartition
from chronik.records.batch import BatchHeader, Buffer, read_header
from chronik.storage.disk import Disk, IoThread
from chronik.storage.segment import Segment
from chronik.storage.wal_format import WalEntryKind

if TYPE_CHECKING:
    from chronik.storage.log import PartitionLog
    from chronik.storage.wal import Wal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The topic settings that storage obeys; replaced as a whole when they change."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    file_delete_delay_ms: int = 60_000
    sync_within_seconds: float = 0.0
    """Seconds within which the WAL has to sync an append after it was reported; 0: before that."""
    sync_records: int = 2**63 - 1
    """An append with which so many records are not synced is synced before it is reported."""

    def segment_age_max_ms(self, tp: TopicPartition, base_offset: int) -> int:
        """segment.ms, less a share of segment.jitter.ms that differs from segment to segment."""
        share = crc32c(f"{tp}:{base_offset}".encode()) / 0xFFFFFFFF
        return self.segment_ms - int(share * min(self.segment_jitter_ms, self.segment_ms))


class SegmentDamage(Exception):
    """The disk lost bytes of a segment; records there cannot be read from this file any more."""

    def __init__(self, segment: Segment, position: int, offset: int) -> None:
        super().__init__(f"{segment.path} is damaged near byte {position}, offset {offset}")
        self.segment = segment
        self.position = position
        self.offset = offset
        """Offset that was being read when the damage was found."""


class LogListener(Protocol):
    def on_durable(self, end_offset: int) -> None:
        """Everything before `end_offset` is on this node's disk; in a relaxed log, at least in a WAL file."""

    def on_rejected(self, end_offset: int, error: StorageError) -> None:
        """The WAL could not write the batches behind `end_offset`, and the log has dropped them."""

    def on_damaged(self, damage: SegmentDamage) -> bool:
        """The disk lost records. True if another replica will restore them; readers must not skip them."""
        ...


COPIED_BYTES_MAX: Final = 8 * 1024
"""The tail keeps a copy of a batch up to this size: a view would keep the whole request in memory, and the
garbage collector tracks views."""


class TailBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch in the in-memory tail. There may be tens of thousands, which the garbage collector would scan
    for tens of milliseconds. `gc=False` keeps it from doing so; a batch is never part of a cycle."""

    base_offset: int
    next_offset: int
    position: int
    view: Buffer
    segment: Segment

    @property
    def header(self) -> BatchHeader:
        return read_header(self.view)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the flusher writes for one log: runs of batches per segment, and segments that end."""

    runs: list[tuple[Segment, int, list[Buffer]]]
    sealed: list[Segment]
    next_offset: int
    truncations: int


def runs_to_write(
    tail: Sequence[TailBatch], flushed_offset: int, synced_end_offset: int
) -> tuple[list[tuple[Segment, int, list[Buffer]]], int]:
    """The runs of a `WritePlan`, and up to which offset the log is in its files once they are written.

    A segment is never ahead of what the WAL has on disk: recovery believes the WAL.
    """
    runs: list[tuple[Segment, int, list[Buffer]]] = []
    # Where a cut left a gap, the log's end is behind that of its last batch.
    next_offset = max(flushed_offset, synced_end_offset)
    start = max(bisect_right(tail, flushed_offset, key=lambda batch: batch.base_offset) - 1, 0)
    for place in range(start, len(tail)):
        batch = tail[place]
        if batch.next_offset <= flushed_offset:
            continue
        if batch.next_offset > synced_end_offset:
            return runs, max(flushed_offset, min(next_offset, batch.base_offset))
        if runs and runs[-1][0] is batch.segment:
            runs[-1][2].append(batch.view)
        else:
            runs.append((batch.segment, batch.position, [batch.view]))
    return runs, next_offset


class Dirty(Protocol):
    """Where a log reports that it has batches to write out (the flusher)."""

    def mark(self, log: PartitionLog) -> None:
        """The log has durable batches, or segments to seal, for the next pass."""

    def note_bytes(self, change: int) -> None:
        """The number of bytes that are in memory only went up (or down) by `change`."""


class WalWaiter:
    """Sink of a WAL entry that is no append: wakes a future."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self, token: int) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def rejected(self, token: int, error: StorageError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class FileWork:
    """Cuts and deletions of segment files. They run once the WAL entry that orders them is durable.

    If they ran earlier, a power loss could leave files shorter than the last checkpoint says, with no entry
    in the WAL that explains it. They run in the same I/O thread as segment writes, before any later write.
    """

    __slots__ = ("_disk", "_tp", "kept_end", "waiting")

    def __init__(self, disk: Disk, tp: TopicPartition) -> None:
        self._disk = disk
        self._tp = tp
        self.waiting: list[Callable[[], None]] = []
        self.kept_end = 0
        """While work waits: none of it cuts what is before this offset."""

    def add(self, work: Callable[[], None], cut_at: int) -> None:
        self.kept_end = min(self.kept_end, cut_at) if self.waiting else cut_at
        self.waiting.append(work)

    def note_cut(self, offset: int) -> None:
        """The log was cut in memory alone: what comes behind `offset` now has other places in the file."""
        self.kept_end = min(self.kept_end, offset)

    def begin(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.kept_end = 0
        for work in waiting:
            self._disk.submit(IoThread.BACKGROUND, work, self._done)

    def _done(self, _result: None, error: BaseException | None) -> None:
        if error is not None:
            log.error(
                "%s: files could not be cut; the WAL has the cut, a restart will do it: %s", self._tp, error
            )


class AppendSink:
    """WAL sink of a log's appends. Each truncation of the log replaces it with a new sink.

    Of appends from before the truncation only what it left counts: other batches may have the offsets behind
    that by now.
    """

    __slots__ = ("_dirty", "_file_work", "_listeners", "_of", "log")

    def __init__(
        self, log: PartitionLog, file_work: FileWork, dirty: Dirty, listeners: Sequence[LogListener]
    ) -> None:
        self.log: PartitionLog | None = log
        """None after the log was truncated."""
        self._of = log
        self._file_work = file_work
        self._dirty = dirty
        self._listeners = listeners

    def retire(self) -> AppendSink:
        """The log was truncated: returns the sink of what is appended from now on."""
        self.log = None
        return AppendSink(self._of, self._file_work, self._dirty, self._listeners)

    def committed(self, token: int) -> None:
        """Everything before `token` is on disk."""
        log = self.log
        if log is None:
            self._left_durable(token, is_written=True, is_synced=True)
            return
        if token > log.durable_end_offset:  # else it was in doubt, and written again
            log.durable_end_offset = token
        if token > log.synced_end_offset:
            log.synced_end_offset = token
        if self._file_work.waiting:
            self._file_work.begin()
        self._dirty.mark(log)
        for listener in self._listeners:
            listener.on_durable(token)

    def written(self, token: int) -> None:
        """Everything before `token` survives the process."""
        log = self.log
        if log is None:
            self._left_durable(token, is_written=True)
            return
        log.durable_end_offset = token
        for listener in self._listeners:
            listener.on_durable(token)

    def synced(self, token: int) -> None:
        log = self.log
        if log is None:
            self._left_durable(token, is_synced=True)
            return
        if token > log.synced_end_offset:
            log.synced_end_offset = token
        if self._file_work.waiting:
            self._file_work.begin()
        self._dirty.mark(log)

    def _left_durable(self, token: int, *, is_written: bool = False, is_synced: bool = False) -> None:
        """The same after a truncation. Before the files are cut, nothing behind the cut may be written."""
        end = min(token, self._file_work.kept_end)
        log = self._of
        if is_synced and end > log.synced_end_offset:
            log.synced_end_offset = end
            self._dirty.mark(log)
        if is_written and end > log.durable_end_offset:
            log.durable_end_offset = end
            for listener in self._listeners:
                listener.on_durable(end)

    def doubt(self) -> None:
        self._of.relaxed.doubt(self._of)

    @property
    def is_in_doubt(self) -> bool:
        return self._of.relaxed.is_in_doubt(self._of)

    def write_again(self) -> None:
        self._of.write_again()

    def rejected(self, token: int, error: StorageError) -> None:
        if self.log is not None:
            self.log.rejected(token, error)


class _Mark:
    """WAL sink of an OPEN or RESET entry."""

    __slots__ = ("_done", "_refused")

    def __init__(self, done: Callable[[], None], refused: Callable[[], None]) -> None:
        self._done = done
        self._refused = refused

    def committed(self, token: int) -> None:
        self._done()

    def rejected(self, token: int, error: StorageError) -> None:
        self._refused()


class Preamble:
    """The WAL entries that must precede a log's next append: OPEN (the topic's name) and RESET (a new start).

    If their commit round fails they are written again before the next append. Without them recovery would
    not know which topic the appends belong to, or at which offset they start.
    """

    __slots__ = (
        "_on_restarted",
        "_partition",
        "_restart",
        "_restart_due",
        "_topic",
        "_topic_id",
        "is_due",
        "is_known",
    )

    def __init__(self, tp: TopicPartition, topic_id: bytes, *, is_known: bool) -> None:
        self._topic = tp.topic.encode()
        self._topic_id = topic_id
        self._partition = tp.partition
        self.is_known = is_known
        """Whether the WAL or a checkpoint has the name of the log's topic."""
        self.is_due = not is_known
        """Whether `write` has something to write."""
        self._restart = 0
        self._restart_due = False
        self._on_restarted: Callable[[], None] = lambda: None

    def restart(self, offset: int, done: Callable[[], None]) -> None:
        """The log was emptied and continues at `offset`. `done` is called when the RESET entry is durable."""
        self._restart, self._restart_due, self._on_restarted = offset, True, done
        self.is_due = True

    def write(self, wal: Wal) -> None:
        self.is_due = False
        if not self.is_known:
            self.is_known = True
            mark = _Mark(lambda: None, self._not_known)
            wal.append(WalEntryKind.OPEN, self._topic_id, self._partition, 0, self._topic, mark, 0)
        if self._restart_due:
            self._restart_due = False
            mark = _Mark(self._on_restarted, self._not_restarted)
            wal.append(WalEntryKind.RESET, self._topic_id, self._partition, self._restart, b"", mark, 0)

    def _not_known(self) -> None:
        self.is_known = False
        self.is_due = True

    def _not_restarted(self) -> None:
        self._restart_due = True
        self.is_due = True


def delete_segments(segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.delete()
