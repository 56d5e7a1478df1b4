"""A node takes Raft messages from nodes of its cluster alone, and may not know all of these yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chronik.cluster.known_nodes import KnownNodes
from chronik.cluster.raft_driver import RaftDriver
from chronik.config import Address, Peer
from chronik.sim.world import SimNode
from tests.sim.quiet import Quiet

NEWCOMER = 4


def raft(node: SimNode) -> RaftDriver:
    assert node.node is not None
    return node.node.parts.raft


async def lead_by_a_newcomer(quiet: Quiet) -> SimNode:
    """Node 3 is down while node 4 joins, votes in its place and leads. Gives node 3."""
    cluster = quiet.cluster
    await quiet.start()
    late = cluster.nodes.pop()
    await late.stop()
    first = cluster.nodes[0]
    assert first.node is not None
    host = f"10.0.0.{NEWCOMER}"
    own = Peer(id=NEWCOMER, kafka=Address(host, 9092), wal=Address(host, 9291), raft=Address(host, 5001))
    entry = {"node_id": own.id, "kafka": str(own.kafka), "wal": str(own.wal), "raft": str(own.raft)}
    await first.serve(first.node.parts.operations.add_node(entry))
    peers = (*first.settings.peers, own)
    newcomer = cluster.join(replace(first.settings, node_id=NEWCOMER, bind=host, join=True, peers=peers))
    await cluster.until(
        lambda: (
            newcomer.is_serving
            and all(NEWCOMER in raft(node).membership.voters for node in cluster.nodes)
            and late.settings.node_id not in raft(newcomer).membership.voters
        ),
        "the newcomer votes in place of the node that is down",
        60.0,
    )
    leader = next(node for node in cluster.nodes if raft(node).is_leader)
    if leader is not newcomer:
        leader.run(transfer(leader))
    await cluster.until(lambda: raft(newcomer).is_leader, "the newcomer leads", 30.0)
    return late


async def transfer(leader: SimNode) -> None:
    raft(leader).transfer_leadership(NEWCOMER)


def test_a_node_that_was_down_follows_a_leader_that_joined_meanwhile() -> None:
    """The nodes that it knows vouch for the one that it does not know."""
    quiet = Quiet(3, voter_replace_ms=1_000)

    async def main() -> None:
        late = await lead_by_a_newcomer(quiet)
        late.start()
        quiet.cluster.nodes.append(late)
        await quiet.cluster.until(lambda: late.is_serving, "the late node serves", 30.0)
        assert raft(late).leader_id == NEWCOMER
        await quiet.cluster.converge()
        await quiet.cluster.stop()

    quiet.world.run(main(), seconds_max=300, steps_max=3_000_000)


def test_it_does_not_follow_one_that_nobody_vouches_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnownNodes, "_ask_about", lambda _self, _node_id: None)
    quiet = Quiet(3, voter_replace_ms=1_000)

    async def main() -> None:
        late = await lead_by_a_newcomer(quiet)
        late.start()
        assert not await quiet.cluster.comes(lambda: late.is_serving, 10.0)
        await quiet.cluster.stop()

    quiet.world.run(main(), seconds_max=300, steps_max=3_000_000)
