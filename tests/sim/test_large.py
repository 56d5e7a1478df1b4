"""Clusters of more nodes and partitions than can be run here: what the loss of some of them takes."""

from __future__ import annotations

import pytest

from chronik.metadata.snapshot import encode_snapshot
from chronik.sim.large import LargeCluster, Loss, run_large

LEADERS_SECONDS_MAX = 2.0


def check(cluster: LargeCluster, racks: int) -> None:
    """Every partition is led by a live node out of its ISR, its replicas are in three racks, all agree."""
    rack_of = {node.node_id: node.settings.rack for node in cluster.nodes}
    live = {node.node_id for node in cluster.live()}
    first = cluster.live()[0].metadata.state
    for topic in first.topics.values():
        for one in topic.partitions:
            assert one.leader in live
            assert one.leader in one.isr
            assert len({rack_of[replica] for replica in one.replicas}) == min(racks, 3)
    assert len({encode_snapshot(node.metadata.state) for node in cluster.live()}) == 1


def test_a_lost_nodes_partitions_have_leaders_within_two_seconds() -> None:
    """N03, in small: a node, the controller, a node without power, a rack."""

    async def work(cluster: LargeCluster) -> list[Loss]:
        await cluster.start()
        await cluster.create(1_000)
        check(cluster, racks=5)
        losses = []
        controller = cluster.controller()
        assert controller is not None
        # Of one rack, so that no partition loses its three replicas here.
        ordinary = [node for node in cluster.nodes if node.settings.rack == "rack-0"]
        losses.append(await cluster.lose([ordinary[0]], power_lost=False))
        check(cluster, racks=5)
        losses.append(await cluster.lose([ordinary[1]], power_lost=True))
        check(cluster, racks=5)
        losses.append(await cluster.lose([controller], power_lost=False))
        check(cluster, racks=5)
        return losses

    losses = run_large(work, nodes=10, racks=5)
    assert [loss.seconds < LEADERS_SECONDS_MAX for loss in losses] == [True] * 3, losses


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_controllers_host_loses_power(seed: int) -> None:
    """Nobody sees that but by silence. The successor must not wait anew for leases that it did not grant, and
    the survivors must not split their votes (N03)."""

    async def work(cluster: LargeCluster) -> Loss:
        await cluster.start()
        await cluster.create(200)
        controller = cluster.controller()
        assert controller is not None
        loss = await cluster.lose([controller], power_lost=True)
        check(cluster, racks=5)
        return loss

    assert run_large(work, nodes=5, racks=5, seed=seed).seconds < LEADERS_SECONDS_MAX


def test_the_controllers_rack_loses_power() -> None:
    """Nobody but the controller had heard of the other node of its rack: its successor has to ask first."""

    async def work(cluster: LargeCluster) -> Loss:
        await cluster.start()
        await cluster.create(200)
        controller = cluster.controller()
        assert controller is not None
        rack = [node for node in cluster.nodes if node.settings.rack == controller.settings.rack]
        assert len(rack) == 2
        loss = await cluster.lose(rack, power_lost=True)
        check(cluster, racks=5)
        return loss

    assert run_large(work, nodes=10, racks=5).seconds < LEADERS_SECONDS_MAX


def test_many_nodes_may_join_at_once() -> None:
    """They are let into the quorum one by one. Who waited longer than a broker may be silent was fenced, and
    so was never let in."""

    async def work(cluster: LargeCluster) -> float:
        return await cluster.start()

    assert run_large(work, nodes=30, racks=10) < 10.0


def test_a_lost_racks_partitions_have_leaders_and_new_nodes_get_their_share() -> None:
    async def work(cluster: LargeCluster) -> Loss:
        await cluster.start()
        await cluster.create(200)
        rack = [node for node in cluster.nodes if node.settings.rack == "rack-0"]
        assert [node.node_id for node in rack] == [5, 10]
        loss = await cluster.lose(rack, power_lost=True)
        check(cluster, racks=5)
        await cluster.add(2)
        node = cluster.nodes[0]
        await cluster.call(node, node.operations.rebalance())
        state = node.metadata.state
        held = {
            one.node_id: sum(
                one.node_id in partition.replicas
                for topic in state.topics.values()
                for partition in topic.partitions
            )
            for one in cluster.live()
        }
        assert max(held.values()) - min(held.values()) <= 1, held
        return loss

    assert run_large(work, nodes=10, racks=5).seconds < LEADERS_SECONDS_MAX
