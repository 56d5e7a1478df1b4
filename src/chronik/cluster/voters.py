"""Which nodes carry the metadata quorum: 1, 3 or 5 voters; every other node observes. Pure.

Few voters keep a commit cheap however large the cluster is: an observer gets the log as voters do, but nobody
waits for it. Voters change through the log alone, one at a time, so two of them never disagree about who
votes; the nodes that found a cluster are its first voters, and those too many become observers.

A node that an operator promoted votes before others, one that was demoted or drains after all others. Between
equals, racks decide (a rack gets a second voter only after every rack has one), then who votes already, so
that the set does not change without need. A voter that is gone keeps its vote until it is gone for good.

A voter is replaced before it goes. A live one goes only while all that stay are alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from chronik.metadata.state import ClusterState
from chronik.model import NodeId
from chronik.raft import ChangeKind, ConfigChange, Membership

__all__ = ["VOTERS_DEFAULT", "quorum_changes", "voters_of"]

VOTERS_DEFAULT: Final = 3
"""For tests and tools; a node has its setting `voters`."""

_PROMOTED, _USUAL, _GONE, _UNWANTED = range(4)


def voters_of(
    state: ClusterState,
    membership: Membership,
    *,
    wanted: int = VOTERS_DEFAULT,
    gone: Collection[NodeId] = (),
    leader: NodeId | None = None,
) -> tuple[NodeId, ...]:
    """The nodes that should vote: `wanted` of them, or the largest smaller odd number that there can be.

    `gone` are those that have been away long enough to be replaced (`voter_replace_ms`).
    """
    possible = {node for node in membership.voters if node not in state.removed}
    possible.update(one.broker_id for one in state.live_brokers() if not one.draining)
    count = min(wanted, len(possible))
    count -= 1 - count % 2
    chosen: list[NodeId] = []
    in_rack: Counter[str | NodeId] = Counter()
    while len(chosen) < count:
        best = min(
            possible,
            key=lambda node: (
                _rank(state, node, gone),
                in_rack[_rack(state, node)],
                node not in membership.voters,
                not state.is_alive(node),
                node != leader,
                node,
            ),
        )
        possible.remove(best)
        chosen.append(best)
        in_rack[_rack(state, best)] += 1
    return tuple(sorted(chosen))


def quorum_changes(
    state: ClusterState,
    membership: Membership,
    *,
    wanted: int = VOTERS_DEFAULT,
    gone: Collection[NodeId] = (),
    leader: NodeId | None = None,
) -> list[ConfigChange]:
    """The steps that are possible now, in the order in which they should be tried."""
    chosen = voters_of(state, membership, wanted=wanted, gone=gone, leader=leader)
    voters, learners = membership.voters, membership.learners
    promotions = [node for node in chosen if node in learners and state.is_alive(node)]
    removals = [node for node in membership.members if node in state.removed and voters != (node,)]
    surplus = [node for node in voters if node not in chosen and node not in state.removed]
    if not set(chosen) <= set(voters):
        surplus = []
    elif not all(map(state.is_alive, chosen)):
        surplus = [node for node in surplus if not state.is_alive(node)]
    joining = [
        one.broker_id
        for one in state.live_brokers()
        if one.broker_id not in membership.members and not one.draining
    ]
    return [
        *(ConfigChange(ChangeKind.PROMOTE, node) for node in promotions),
        *(ConfigChange(ChangeKind.REMOVE, node) for node in removals),
        # First those that are down, so that a majority stays alive; last the leader, so that it can go on.
        *(
            ConfigChange(ChangeKind.DEMOTE, node)
            for node in sorted(surplus, key=lambda node: (state.is_alive(node), node == leader, node))
        ),
        *(ConfigChange(ChangeKind.ADD_LEARNER, node) for node in joining),
    ]


def _rank(state: ClusterState, node: NodeId, gone: Collection[NodeId]) -> int:
    broker = state.brokers.get(node)
    if broker is not None and (broker.draining or broker.votes is False):
        return _UNWANTED
    if node in gone:
        return _GONE
    return _PROMOTED if broker is not None and broker.votes else _USUAL


def _rack(state: ClusterState, node: NodeId) -> str | NodeId:
    """A node without a rack counts as a rack of its own."""
    broker = state.brokers.get(node)
    return node if broker is None or broker.rack is None else broker.rack
