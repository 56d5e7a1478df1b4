"""What Raft stores: log entries, hard state, snapshots, and the membership they carry.

All of these are written to disk or sent to peers, so all of them are msgspec structs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from chronik.model import ErrorCode, NodeId, RequestError, Unavailable, invariant

__all__ = [
    "ChangeKind",
    "ConfigChange",
    "Entry",
    "EntryKind",
    "HardState",
    "Membership",
    "NotLeader",
    "RaftConfig",
    "Snapshot",
]

ENTRY_OVERHEAD_BYTES = 16
"""What an entry costs in a window besides its data; keeps empty entries from being free."""


class NotLeader(Unavailable):
    """Only the leader can do this; `leader_hint` is who that is, as far as this node knows."""

    def __init__(self, leader_hint: NodeId | None) -> None:
        known = "unknown" if leader_hint is None else f"node {leader_hint}"
        super().__init__(f"not the leader; the leader is {known}")
        self.leader_hint = leader_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    node_id: NodeId
    voters: tuple[NodeId, ...]
    """The voters of a cluster that has no log yet. Any membership found in the log or in a
    snapshot overrides it. Empty for a node that joins: it learns the membership from the leader."""
    random_ticks: Callable[[int], int]
    """`random_ticks(n)` gives a number in [0, n); spreads election time-outs."""
    election_ticks: int = 10
    """A follower waits this long, and up to twice as long, for its leader. Also the lease: who
    heard from a leader within this time answers no candidate."""
    heartbeat_ticks: int = 1
    patience_ticks: int = 0
    """Added to the time-out of a follower that knows a leader, where the driver watches the leader too."""
    max_inflight: int = 256
    """Unacknowledged appends per follower."""
    max_inflight_bytes: int = 16 * 1024 * 1024
    max_append_bytes: int = 1024 * 1024
    """Entry bytes per append; a single larger entry still travels, alone."""
    max_uncommitted_bytes: int = 64 * 1024 * 1024
    """Proposals beyond this are refused as Unavailable until something commits."""
    snapshot_ticks: int = 100
    """A snapshot unanswered for this long is taken for lost, and offered again."""

    def __post_init__(self) -> None:
        invariant(self.node_id >= 0, "node ids are not negative")
        invariant(0 < self.heartbeat_ticks < self.election_ticks, "heartbeats must outpace elections")
        invariant(self.max_inflight > 0 and self.max_append_bytes > 0, "windows must let something through")


class EntryKind(enum.IntEnum):
    COMMAND = 0
    CONFIG = 1
    NOOP = 2


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    term: int
    index: int
    kind: EntryKind
    data: bytes

    @property
    def cost_bytes(self) -> int:
        return len(self.data) + ENTRY_OVERHEAD_BYTES


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What must survive a crash besides the log (paper, figure 2)."""

    term: int = 0
    vote: NodeId | None = None
    """Who got this node's vote in `term`."""
    commit: int = 0
    """A hint that saves time after a restart; may lag, never lies beyond the durable log."""


class ChangeKind(enum.Enum):
    ADD_LEARNER = "add_learner"
    PROMOTE = "promote"
    DEMOTE = "demote"
    REMOVE = "remove"


class ConfigChange(msgspec.Struct, frozen=True):
    """One step. Adding a voter takes two: add it as a learner, promote it when it has caught up.

    A voter that is demoted goes on as a learner.
    """

    kind: ChangeKind
    node_id: NodeId


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """Who votes and who only listens. Both sorted, disjoint. Config entries carry it whole."""

    voters: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()

    @property
    def members(self) -> tuple[NodeId, ...]:
        return tuple(sorted((*self.voters, *self.learners)))

    def changed(self, change: ConfigChange) -> Membership:
        """The membership after one step; two neighbours always share a majority (thesis §4.1)."""
        voters, learners, node = set(self.voters), set(self.learners), change.node_id
        if change.kind is ChangeKind.ADD_LEARNER:
            if node in voters | learners:
                raise RequestError(ErrorCode.duplicate_voter, f"node {node} is already a member")
            learners.add(node)
        elif change.kind is ChangeKind.PROMOTE:
            if node not in learners:
                raise RequestError(ErrorCode.voter_not_found, f"node {node} is not a learner")
            learners.remove(node)
            voters.add(node)
        else:
            is_demoted = change.kind is ChangeKind.DEMOTE
            if node not in (voters if is_demoted else voters | learners):
                kind = "voter" if is_demoted else "member"
                raise RequestError(ErrorCode.voter_not_found, f"node {node} is not a {kind}")
            if voters == {node}:
                raise RequestError(ErrorCode.invalid_request, "the last voter cannot go")
            voters.discard(node)
            learners.discard(node)
            if is_demoted:
                learners.add(node)
        return Membership(tuple(sorted(voters)), tuple(sorted(learners)))


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Everything up to and including `index`, in place of the entries.

    Inside the core `data` is empty: state machines are not its business. The driver fills it in
    when it sends an InstallSnapshot, and finds it filled in `Ready.snapshot`.
    """

    index: int
    term: int
    membership: Membership
    data: bytes = b""
