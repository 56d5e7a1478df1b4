"""What a partition's log is made of, and whom it talks to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from chronik.model import StorageError
from chronik.records.batch import BatchHeader, Buffer
from chronik.storage.segment import Segment

if TYPE_CHECKING:
    from chronik.storage.log import PartitionLog
    from chronik.storage.wal import WalSink


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


@dataclass(slots=True)
class TailBatch:
    base_offset: int
    next_offset: int
    position: int
    view: Buffer
    segment: Segment
    header: BatchHeader


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
