"""What a partition's log is made of, and whom it talks to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from chronik.model import StorageError, TopicPartition
from chronik.records.batch import BatchHeader, Buffer, read_header
from chronik.storage.disk import Disk, Lane
from chronik.storage.segment import Segment
from chronik.storage.wal_format import EntryKind

if TYPE_CHECKING:
    from chronik.storage.log import PartitionLog
    from chronik.storage.wal import Wal, WalSink

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


class LogListener(Protocol):
    def on_durable(self, end_offset: int) -> None:
        """Everything before `end_offset` is on this node's disk."""

    def on_rejected(self, end_offset: int, error: StorageError) -> None:
        """The log was cut back to `end_offset`: what came behind it could not be written."""


COPIED_BYTES_MAX: Final = 8 * 1024


class TailBatch(msgspec.Struct, frozen=True, gc=False):
    """One of the tens of thousands that memory may keep, if they are small. To look at all of them would hold
    up the node for tens of milliseconds, so the garbage collector does not; there are no cycles here."""

    base_offset: int
    next_offset: int
    position: int
    view: Buffer
    segment: Segment

    @property
    def header(self) -> BatchHeader:
        return read_header(self.view)


def kept(batch: Buffer) -> Buffer:
    """What the tail keeps of a batch: a small one is copied, since a view is work for the collector too, and
    holds on to the whole request that it came with."""
    return bytes(batch) if len(batch) <= COPIED_BYTES_MAX else batch


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the flusher writes for one log: runs of batches per segment, and segments that end."""

    runs: list[tuple[Segment, int, list[Buffer]]]
    sealed: list[Segment]
    next_offset: int
    truncations: int


class Dirty(Protocol):
    """Where a log reports that it has batches to write out (the flusher)."""

    def mark(self, log: PartitionLog) -> None:
        """The log has durable batches, or segments to seal, for the next pass."""

    def note_bytes(self, change: int) -> None:
        """So many more (or fewer) bytes are in memory only."""


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
    """Cuts and deletions that wait for the WAL to have the entry that calls for them.

    Done sooner, a power loss could leave files without what the last checkpoint vouches for, and no word of
    why in the WAL. Done then, they stand in their lane before whatever is written after them.
    """

    __slots__ = ("_disk", "_tp", "_waiting")

    def __init__(self, disk: Disk, tp: TopicPartition) -> None:
        self._disk = disk
        self._tp = tp
        self._waiting: list[Callable[[], None]] = []

    def add(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)

    def begin(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for work in waiting:
                self._disk.submit(Lane.BACKGROUND, work, self._done)

    def _done(self, _result: None, error: BaseException | None) -> None:
        if error is not None:
            log.error(
                "%s: files could not be cut; the WAL has the cut, a restart will do it: %s", self._tp, error
            )


class AppendSink:
    """Passes on what the WAL says of a log's appends, until the log is cut.

    What was under way then says nothing of the log any more: its offsets may stand for other batches by now.
    """

    __slots__ = ("log",)

    def __init__(self, log: WalSink) -> None:
        self.log: WalSink = log

    def committed(self, token: int) -> None:
        self.log.committed(token)

    def rejected(self, token: int, error: StorageError) -> None:
        self.log.rejected(token, error)


class IgnoreSink:
    def committed(self, token: int) -> None:
        pass

    def rejected(self, token: int, error: StorageError) -> None:
        pass


IGNORE = IgnoreSink()


class _Mark:
    """Sink of an entry that says something of the log as a whole."""

    __slots__ = ("_done", "_refused")

    def __init__(self, done: Callable[[], None], refused: Callable[[], None]) -> None:
        self._done = done
        self._refused = refused

    def committed(self, token: int) -> None:
        self._done()

    def rejected(self, token: int, error: StorageError) -> None:
        self._refused()


class Preamble:
    """What has to stand in the WAL before a log's next append: whose log it is, and where it began anew.

    A round that fails takes its entries back, these too: then they are written again, or recovery would not
    know whose the appends are, or where they belong.
    """

    __slots__ = ("_on_restarted", "_partition", "_restart", "_restart_due", "_topic", "_topic_id", "is_known")

    def __init__(self, tp: TopicPartition, topic_id: bytes, *, is_known: bool) -> None:
        self._topic = tp.topic.encode()
        self._topic_id = topic_id
        self._partition = tp.partition
        self.is_known = is_known
        """Whether the WAL or a checkpoint knows whose log it is."""
        self._restart = 0
        self._restart_due = False
        self._on_restarted: Callable[[], None] = lambda: None

    def restart(self, offset: int, done: Callable[[], None]) -> None:
        """The log is empty and goes on at `offset`; `done` is called when the WAL has that."""
        self._restart, self._restart_due, self._on_restarted = offset, True, done

    def write(self, wal: Wal) -> None:
        if not self.is_known:
            self.is_known = True
            mark = _Mark(lambda: None, self._not_known)
            wal.append(EntryKind.OPEN, self._topic_id, self._partition, 0, self._topic, mark, 0)
        if self._restart_due:
            self._restart_due = False
            mark = _Mark(self._on_restarted, self._not_restarted)
            wal.append(EntryKind.RESET, self._topic_id, self._partition, self._restart, b"", mark, 0)

    def _not_known(self) -> None:
        self.is_known = False

    def _not_restarted(self) -> None:
        self._restart_due = True
