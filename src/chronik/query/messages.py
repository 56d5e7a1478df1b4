"""The messages between the node and its child: frames of msgpack on a pair of pipes."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Any, Final

import msgspec

from chronik.model import ChronikError

__all__ = [
    "Assignment",
    "Broken",
    "Cancel",
    "ChildHello",
    "Credentials",
    "Farewell",
    "IndexProgress",
    "LogLosses",
    "Logs",
    "Ping",
    "Pong",
    "QueryAnswer",
    "QueryError",
    "Question",
    "Stuck",
    "ended",
    "frame_of",
    "read_frame",
    "write_frame",
]

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest frame. SQL rows are passed as files, and the hits of a search have a much lower limit."""
_LENGTH: Final = struct.Struct(">I")


class QueryError(ChronikError):
    """A question that cannot be answered; status and code are what an HTTP client gets."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Stuck(QueryError):
    """Work that goes on although it was told to stop. Only the end of the process ends it."""

    def __init__(self, what: str) -> None:
        super().__init__(408, "query_timed_out", f"The {what} did not stop; its process is started again.")


async def ended(work: asyncio.Future[Any], seconds: float) -> bool:
    """Wait until `work` has ended, even if the waiting task is cancelled. False if that takes longer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not work.done() and (left := deadline - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work], timeout=left)
    if work.done() and not work.cancelled():
        work.exception()  # it failed because it was cancelled here
    return work.done()


class Broken(ChronikError):
    """The other side sent bytes that are no frame. What follows cannot be decoded either."""


class Question(msgspec.Struct, frozen=True, kw_only=True, tag="question"):
    id: int
    method: str
    body: Any


class Assignment(msgspec.Struct, frozen=True, kw_only=True, tag="assignment"):
    """The searchable partitions that the node leads, by topic and topic id."""

    topics: dict[str, tuple[str, list[int]]]


class LogLosses(msgspec.Struct, frozen=True, array_like=True):
    """What a partition's log has lost."""

    start: int
    """Nothing before this offset is left."""
    compaction: int = -1
    """The number of its last compaction, 0 if there was none since the node began, -1 if it has none."""
    compacted_below: int = 0

    def joined(self, other: LogLosses) -> LogLosses:
        """The maximum of both, field by field: neither value ever decreases."""
        return LogLosses(
            max(self.start, other.start),
            max(self.compaction, other.compaction),
            max(self.compacted_below, other.compacted_below),
        )


class Logs(msgspec.Struct, frozen=True, kw_only=True, tag="logs"):
    """What the logs have lost, by topic id and partition. A topic of the same name may be another one."""

    topics: dict[str, dict[int, LogLosses]]


class Credentials(msgspec.Struct, frozen=True, kw_only=True, tag="credentials"):
    """Login with which the child reads from the cluster. Sent on stdin, which no other process sees."""

    mechanism: str
    user: str
    password: str
    seed: bytes = b""
    """Seed of the child's key; empty if the node has no key to sign a warrant with."""
    warrant: bytes = b""
    trust: str | None = None
    """Certificates (PEM) that it believes, if the brokers speak TLS."""

    def __repr__(self) -> str:
        return f"Credentials({self.user})"


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Nobody waits for this answer any more. The child still sends one, when the work has stopped."""

    id: int


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    pass


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag="pong"):
    skipped: int = 0
    """Records that this process could not read, since it began."""
    columns_bytes: int = 0
    columns_dropped: int = 0
    """Bytes of columns that SQL keeps on disk, and how many topics lost theirs since it began."""


class ChildHello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The first message of a child: it is ready, and this is what confines it."""

    confinement: dict[str, str]


class Farewell(msgspec.Struct, frozen=True, kw_only=True, tag="farewell"):
    """The process ends after its next answer: questions from now on go to its successor."""


class QueryAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    id: int
    body: Any = None
    status: int = 200
    code: str = ""
    message: str = ""


class PartitionProgress(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    next_offset: int
    """Everything before can be found."""
    documents: int


class IndexProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    partitions: list[PartitionProgress]


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """None when the other side is gone. Raises Broken for a frame that is malformed or too long."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(4))
        if length > FRAME_BYTES_MAX:
            raise Broken(f"a frame of {length} bytes")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def frame_of(message: msgspec.Struct) -> bytes:
    """Raises ValueError for what cannot be sent."""
    data = msgspec.msgpack.encode(message)
    if len(data) > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {len(data)} bytes")
    return _LENGTH.pack(len(data)) + data


def write_frame(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    writer.write(frame_of(message))
