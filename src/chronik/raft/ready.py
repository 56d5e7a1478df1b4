"""What the core hands its driver, and what it tells an onlooker."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from chronik.model import NodeId
from chronik.raft.entries import Entry, HardState, Membership, Snapshot
from chronik.raft.messages import Message
from chronik.raft.progress import ProgressState
from chronik.raft.reads import ReadResult

__all__ = ["FollowerStatus", "Ready", "RoleName", "SoftState", "Status"]


class RoleName(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class SoftState:
    role: RoleName
    leader_id: NodeId | None
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Work for the driver; the package docstring tells in which order."""

    number: int
    """For `persisted`. 0 if there is nothing to persist. Otherwise higher than any before."""
    hard_state: HardState | None
    snapshot: Snapshot | None
    """Replaces the state machine and the whole stored log."""
    truncate_from: int | None
    """Stored entries from this index on are void."""
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    """May be sent at once; those that depend on the disk come in a later Ready, after `persisted`."""
    committed: tuple[Entry, ...]
    """To apply, in order, each once. Durable here and committed."""
    reads: tuple[ReadResult, ...]
    soft_state: SoftState | None
    """Set when it changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus:
    match: int
    next: int
    state: ProgressState
    inflight: int
    is_active: bool
    is_learner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    node_id: NodeId
    role: RoleName
    term: int
    leader_id: NodeId | None
    vote: NodeId | None
    commit: int
    applied: int
    durable: int
    first_index: int
    last_index: int
    membership: Membership
    is_config_pending: bool
    transferee: NodeId | None
    followers: Mapping[NodeId, FollowerStatus]
    """Empty unless leader."""
