"""Nodes join and leave while clients write (S28)."""

from __future__ import annotations

import socket

import pytest

from chronik.testing import Cluster
from tests.cluster import clients
from tests.cluster.load import Load

PARTITIONS = 6


@pytest.mark.timeout(300)
def test_add_a_node_move_partitions_remove_the_first_under_load() -> None:
    with Cluster(nodes=3, can_partition=False) as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS, replication_factor=3)
        with Load(cluster.bootstrap, "orders", PARTITIONS) as load:
            load.wait_acked(10)
            fourth = cluster.add_node()
            load.wait_acked(10)
            assert cluster.rebalance() > 0
            held = [cluster.replicas_of("orders", p) for p in range(PARTITIONS)]
            assert any(fourth in replicas for replicas in held)
            assert all(len(replicas) == 3 for replicas in held)
            load.wait_acked(10)
            cluster.remove_node(1)
            load.wait_acked(10)
            assert not any(1 in cluster.replicas_of("orders", p) for p in range(PARTITIONS))
            assert cluster.nodes == (2, 3, 4)
            assert {frozenset(cluster.brokers_seen(n)) for n in cluster.nodes} == {frozenset({2, 3, 4})}
        assert not load.failures
        print(f"{load.acked} acknowledged, longest pause {load.longest_pause():.2f} s")
        load.check()
        cluster.assert_replicas_agree()
        # The quorum changed with it: two of the three that are left carry on without the other.
        cluster.kill(cluster.controller())
        cluster.wait_ready()
        cluster.create_topic("after", replication_factor=2)


@pytest.mark.timeout(300)
def test_a_removed_node_that_goes_on_running_serves_nobody() -> None:
    """Whether it is told of its removal or has to find out, nobody hears its old news."""
    with Cluster(nodes=3) as cluster:
        asked = cluster.controller()
        cut_off, connected = (node for node in cluster.nodes if node != asked)

        def remove(node_id: int) -> None:
            body = {"node_id": node_id, "force": True}
            cluster.call_admin("/admin/remove-node", body, node_id=asked, timeout_s=120)

        def serves_nobody(node_id: int) -> bool:
            host, port = cluster.bootstrap_of(node_id).split(":")
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except ConnectionRefusedError:
                return "was removed from the cluster" in cluster.log(node_id)
            return False

        cluster.isolate(cut_off)
        cluster.wait_for(lambda: cluster.view(cut_off).controller_id != asked, "it is alone")
        remove(cut_off)
        assert not serves_nobody(cut_off)
        cluster.heal()
        cluster.wait_for(lambda: serves_nobody(cut_off), "it has asked and ended its service")
        remove(connected)
        cluster.wait_for(lambda: serves_nobody(connected), "it was told and ended its service")
        assert not serves_nobody(asked)
        clients.create(clients.admin(cluster.bootstrap), "orders", replicas=1)
        clients.send(clients.producer(cluster.bootstrap, acks=1), "orders", b"the one that is left goes on")
        # Started again, it says why it does not serve instead of waiting for a majority in silence.
        cluster.kill(connected)
        cluster.start(connected, wait=False)
        cluster.wait_for(lambda: "this node does not serve" in cluster.log(connected), "it says why")
        assert serves_nobody(connected)
