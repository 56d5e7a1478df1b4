"""Nodes join and leave while clients write (S28)."""

from __future__ import annotations

import pytest

from chronik.testing import Cluster
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
