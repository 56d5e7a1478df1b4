"""Words that every layer shares: ids, offsets, epochs, errors, limits.

Nothing here does I/O, knows a wire format or reads a clock. Kafka's own names are
used throughout; a concept has one name in the whole code base.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, NoReturn, Protocol, TypeAlias

import msgspec

if not TYPE_CHECKING and "hypothesis" not in sys.modules:
    # kio imports hypothesis wherever it is installed, which costs a second and 200 MB at every start.
    sys.modules["hypothesis"] = None
    import kio.static.primitive  # noqa: F401

    del sys.modules["hypothesis"]

from kio.schema.errors import ErrorCode

__all__ = [
    "AUDIT_TOPIC",
    "BATCH_RECORDS_MAX",
    "METADATA_TOPIC",
    "METADATA_TOPIC_ID",
    "NO_EPOCH",
    "NO_LEADER",
    "NO_OFFSET",
    "NO_TIMESTAMP",
    "REMOTE_CACHE_BYTES",
    "REMOTE_READ_BYTES_MAX",
    "SCHEMAS_TOPIC",
    "WITHOUT_EFFECT",
    "ChronikError",
    "ErrorCode",
    "Int16",
    "Int32",
    "Int64",
    "InvariantViolated",
    "Limits",
    "NodeId",
    "PeerError",
    "Pressure",
    "ProducerIdentity",
    "RequestError",
    "StorageError",
    "TopicPartition",
    "Unavailable",
    "invariant",
    "is_internal_topic",
]

NodeId: TypeAlias = int
Int16: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**15), le=2**15 - 1)]
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Numbers from JSON can be of any size; Kafka's fields hold this many bits."""

NO_LEADER: Final = -1
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

BATCH_RECORDS_MAX: Final = 1_000_000
"""Records of one batch: as many as librdkafka can be told to send (`batch.num.messages`), and a hundred times
what it sends by itself. A few kilobytes can be compressed from millions of records, and looking at each costs
time and memory."""

METADATA_TOPIC: Final = "__chronik_metadata"
METADATA_TOPIC_ID: Final = uuid.UUID(int=1)

WITHOUT_EFFECT: Final = "Without effect"
"""How the documentation of a config begins that is taken, stored and shown but changes nothing."""

SCHEMAS_TOPIC: Final = "_schemas"
"""What the schema registry holds, under the name that Confluent's has."""
_INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", SCHEMAS_TOPIC}
)
_OWN_TOPICS: Final = "__chronik_"
AUDIT_TOPIC: Final = "__chronik_audit"
"""Who did what: nodes alone write it, and it expires like any other topic."""


def is_internal_topic(name: str) -> bool:
    """Whether a topic belongs to the coordinators or the node itself: clients may read it, not change it."""
    return name in _INTERNAL_TOPICS or name.startswith(_OWN_TOPICS)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdentity(NamedTuple):
    """An idempotent or transactional producer, as batches and requests name it."""

    producer_id: int
    producer_epoch: int


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


class RecordError(NamedTuple):
    """Why one record of a refused batch is to blame (KIP-467)."""

    batch_index: int
    """The record's place in its batch, from 0."""
    message: str


class InvalidRecords(RequestError):
    """A batch is refused because of some of its records, and the answer lists them."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class Unavailable(ChronikError):
    """It does not work now; the same request may succeed later (no leader, no quorum, shutting down)."""


class StorageError(ChronikError):
    """A disk failed a partition. The partition goes offline, the node stays up."""


class TooNew(ChronikError):
    """A newer release wrote this, on disk or in the metadata log. The node ends: guessing could lose data."""


def refuse_newer(what: str, found: int, known: int) -> None:
    """Raise TooNew if a format's version is one that this release has never heard of."""
    if found > known:
        raise TooNew(
            f"{what} has version {found} and this release reads up to {known}: "
            "start the node with the release that wrote it, or a newer one"
        )


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


class Pressure(Protocol):
    """Something that peers fill and that has a limit: the WAL's queue, batches that no file has yet."""

    @property
    def full(self) -> bool: ...
    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, when it is no longer full."""


UNFLUSHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes that are durable in the WAL and not yet written to segments before senders have to wait."""
REMOTE_CACHE_BYTES: Final = 64 * 1024 * 1024
"""Memory for what was read from the object store; the indexes of segments there may take as much."""
REMOTE_READ_BYTES_MAX: Final = 96 * 1024 * 1024
"""Memory for reads of the object store that are under way."""
METADATA_BYTES_MAX: Final = 48 * 1024 * 1024
"""What clients may make the cluster's metadata grow to, about, unless a setting says otherwise."""
NAME_BYTES_MAX: Final = 1024
"""Names that clients give and every node keeps for good: users, principals, hosts, groups, entities."""


def check_name_bytes(what: str, name: str) -> None:
    """ValueError if a name is too long to be kept."""
    if len(name.encode(errors="surrogatepass")) > NAME_BYTES_MAX:
        raise ValueError(f"{what} has at most {NAME_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of everything a peer could make grow."""

    frame_bytes_max: int = 100 * 1024 * 1024
    """A longer request frame closes its connection (Kafka: socket.request.max.bytes)."""
    connections_max: int = 10_000
    connections_possible: int = 2**31 - 1
    """What the system allows; `connections_max` is not more and cannot be raised above it."""
    connections_per_ip_max: int = 5_000
    """Connections of clients at one address (Kafka: max.connections.per.ip)."""
    connections_per_second_max: int | None = None
    """New connections of one listener (Kafka: max.connection.creation.rate); None: no limit."""
    http_connections_max: int = 500
    requests_in_flight_max: int = 64
    """Requests a single connection may have under way before its socket is no longer read."""
    request_memory_bytes_max: int = 256 * 1024 * 1024
    """Bytes of request frames held by all connections together before sockets are no longer read."""
    stalled_memory_bytes_max: int = 256 * 1024 * 1024
    """Bytes held for peers that do not go on: half a frame, or answers they do not read. Beyond it those
    connections go that have kept the node waiting longest."""
    response_bytes_max: int = 55 * 1024 * 1024
    """A fetch response is never larger than this, whatever the client asks for (Kafka: fetch.max.bytes)."""
    decompressed_bytes_max: int = 64 * 1024 * 1024
    """What the records of one batch may become when they are decompressed; a few kilobytes can hold
    gigabytes."""
    fetch_sessions_max: int = 1_000
    """Kafka: max.incremental.fetch.session.cache.slots."""
    topic_name_length_max: int = 249
    partitions_per_request_max: int = 10_000
    """Partitions that one CreateTopics or CreatePartitions may make, as in Kafka."""
    cluster_partitions_max: int = 200_000
