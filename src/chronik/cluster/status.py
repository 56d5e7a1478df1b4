"""How the metadata log stands on this node, as values that people and tools read."""

from __future__ import annotations

import msgspec

from chronik.model import NodeId

__all__ = ["FollowerStatus", "RaftStatus"]


class FollowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader knows about another member."""

    node_id: NodeId
    match_index: int
    """Last entry the follower is known to have."""
    lag_entries: int
    last_contact_ms: int | None = None
    """How long ago it was last heard of."""
    is_voter: bool = True


class RaftStatus(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    role: str
    """leader, follower, candidate, or single for a node that is a cluster by itself."""
    term: int
    leader_id: NodeId
    """-1 while nobody leads."""
    last_log_index: int
    last_committed_index: int
    last_applied_index: int
    elections: int = 0
    """Elections this node took part in since it started."""
    fast_path: bool = True
    """False when metadata travels on the Raft port's ticks."""
    fast_messages: int = 0
    """Appends and their answers that went by the replication streams ..."""
    fallback_messages: int = 0
    """... and those that went by ticks on the Raft port."""
    followers: tuple[FollowerStatus, ...] = ()
