"""What goes into the classic group and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chronik.model import ErrorCode

Token: TypeAlias = object
"""Stands for a request that waits; the group hands it back in an Answer. It never looks inside."""

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""A member's assignors, best first, each with its metadata (the subscription)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupConfig:
    """Bounds and delays, under the names of Kafka's broker configs."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 500
    group_size_max: int = 10_000
    new_member_join_timeout_ms: int = 300_000
    """A client that vanished during its first JoinGroup is forgotten after this."""
    member_bytes_max: int = 1024 * 1024
    """Subscriptions of one member, or its assignment. In Kafka the record they go into is limited to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    new_member_id: str
    """The id to give if the member has none yet: drawn by the caller, since the group draws nothing."""
    requires_known_member_id: bool = True
    """KIP-394: JoinGroup v4 and later come back with the id they were given before they count."""
    supports_skipping_assignment: bool = True
    """KIP-814: JoinGroup v9 and later may be told that the leader need not assign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    member_id: str = ""
    error: ErrorCode = ErrorCode.none
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """What of a group survives its coordinator: the contents of its record."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[SavedMember, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Give this result to the request behind the token."""

    token: Token
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class Persist:
    """Append this; when it is durable (or failed) call `ClassicGroup.persisted(number, ...)`."""

    number: int
    saved: SavedGroup


Effect: TypeAlias = Answer | Persist
