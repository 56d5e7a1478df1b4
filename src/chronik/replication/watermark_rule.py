"""How far a partition is replicated: a pure rule, used on every path that moves the high watermark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chronik.model import NodeId


def leader_watermark(
    current: int,
    isr: Iterable[NodeId],
    node_id: NodeId,
    own_durable_end: int,
    follower_ends: Mapping[NodeId, int],
) -> int:
    """The smallest durable end over the in-sync replicas, but never less than it was.

    A member of the ISR that has not reported in this epoch holds the watermark where it is.
    """
    lowest = own_durable_end
    for replica in isr:
        if replica != node_id:
            lowest = min(lowest, follower_ends.get(replica, current))
    return max(lowest, current)


def follower_watermark(current: int, leader_high_watermark: int, own_durable_end: int) -> int:
    """What a follower may show: at most the leader's watermark, and at most what it has on disk."""
    return max(current, min(leader_high_watermark, own_durable_end))
