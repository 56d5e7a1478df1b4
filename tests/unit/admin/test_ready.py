"""When a node says that it is ready: not before its replicas have caught up."""

from __future__ import annotations

from chronik.admin.scrape import replicas_behind
from chronik.metadata import commands as c
from tests.unit.metadata.test_state import ORDERS, Cluster, orders


def test_a_replica_that_is_not_in_sync_is_behind() -> None:
    cluster = Cluster()
    cluster.do(orders((1, 2, 3), (2, 1, 3)))
    assert replicas_behind(cluster.state, 3) == 0
    cluster.do(cluster.change(isr=(1, 2)))
    assert replicas_behind(cluster.state, 3) == 1
    assert replicas_behind(cluster.state, 1) == 0


def test_a_replica_whose_leader_is_dead_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.do(orders((1, 3)))
    cluster.do(cluster.change(isr=(1,)))
    cluster.do(c.FenceBroker(broker_id=1, broker_epoch=cluster.state.brokers[1].epoch))
    assert replicas_behind(cluster.state, 3) == 0


def test_a_replica_that_is_being_moved_here_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.do(orders((1, 2)))
    cluster.do(c.Reassign(topic_id=ORDERS, partition=0, target=(1, 3)))
    assert replicas_behind(cluster.state, 3) == 0
