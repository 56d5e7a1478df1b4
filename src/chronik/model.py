"""Words that every layer shares: ids, offsets, epochs, errors, limits.

Nothing here does I/O, knows a wire format or reads a clock. Kafka's own names are
used throughout; a concept has one name in the whole code base.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeAlias

if not TYPE_CHECKING and "hypothesis" not in sys.modules:
    # kio imports hypothesis wherever it is installed, which costs a second and 200 MB at every start.
    sys.modules["hypothesis"] = None
    import kio.static.primitive  # noqa: F401

    del sys.modules["hypothesis"]

from kio.schema.errors import ErrorCode

__all__ = [
    "METADATA_TOPIC",
    "METADATA_TOPIC_ID",
    "NO_EPOCH",
    "NO_LEADER",
    "NO_OFFSET",
    "NO_TIMESTAMP",
    "ChronikError",
    "ErrorCode",
    "InvariantViolated",
    "Limits",
    "NodeId",
    "PeerError",
    "RequestError",
    "StorageError",
    "TopicPartition",
    "Unavailable",
    "invariant",
]

NodeId: TypeAlias = int

NO_LEADER: Final = -1
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

METADATA_TOPIC: Final = "__chronik_metadata"
METADATA_TOPIC_ID: Final = uuid.UUID(int=1)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ChronikError(Exception):
    """Base of every error that chronik raises on purpose."""


class PeerError(ChronikError):
    """The other side sent bytes that make no sense; its connection is closed."""


class RequestError(ChronikError):
    """A request cannot be done; the client gets this Kafka error code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


class Unavailable(ChronikError):
    """Not now; the same request may succeed later (no leader, no quorum, shutting down)."""


class StorageError(ChronikError):
    """A disk failed a partition. The partition goes offline, the node stays up."""


class InvariantViolated(BaseException):
    """The program itself is wrong. Stops the node: going on could lose data.

    A BaseException, so that no `except Exception` on the way can swallow it.
    """


def invariant(condition: object, why: str) -> None:
    """Check what must always hold; stays on under `python -O`."""
    if not condition:
        violated(why)


def violated(why: str) -> NoReturn:
    raise InvariantViolated(why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of everything a peer could make grow."""

    frame_bytes_max: int = 100 * 1024 * 1024
    """A longer request frame closes its connection (Kafka: socket.request.max.bytes)."""
    connections_max: int = 10_000
    requests_in_flight_max: int = 64
    """Requests a single connection may have under way before its socket is no longer read."""
    request_memory_bytes_max: int = 256 * 1024 * 1024
    """Bytes of request frames held by all connections together before sockets are no longer read."""
    stalled_memory_bytes_max: int = 256 * 1024 * 1024
    """Bytes held for peers that do not go on: half a frame, or answers they do not read. Beyond it those
    connections go that have kept the node waiting longest."""
    response_bytes_max: int = 55 * 1024 * 1024
    """A fetch response is never larger, whatever the client asks for (Kafka: fetch.max.bytes)."""
    fetch_sessions_max: int = 1_000
    topic_name_length_max: int = 249
    partitions_per_topic_max: int = 100_000
