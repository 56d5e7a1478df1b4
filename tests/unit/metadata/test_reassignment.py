"""Replicas on the move: never fewer copies than before, leadership out of the target, back on request."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.metadata import commands as c
from chronik.metadata import events as e
from chronik.metadata import reassignment
from chronik.metadata.values import PartitionRegistration
from chronik.model import NO_LEADER, ErrorCode, TopicPartition
from tests.unit.metadata.test_state import ORDERS, Cluster, orders, register


def move(*target: int) -> c.Reassign:
    return c.Reassign(topic_id=ORDERS, partition=0, target=target)


CANCEL = c.Reassign(topic_id=ORDERS, partition=0, target=None)


def started(*target: int, brokers: int = 5) -> Cluster:
    cluster = Cluster(brokers)
    cluster.do(orders())
    assert cluster.do(move(*target)).refused is None
    return cluster


def test_both_sets_are_replicas_until_the_added_ones_are_in_sync() -> None:
    cluster = started(4, 2, 3)
    moving = cluster.partition()
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 2, 3, 1), (4,), (1,))
    assert (moving.isr, moving.leader, moving.leader_epoch) == ((1, 2, 3), 1, 0)
    outcome = cluster.do(cluster.change(isr=(4, 2, 3, 1)))
    done = cluster.partition()
    assert (done.replicas, done.adding, done.removing, done.isr) == ((4, 2, 3), (), (), (4, 2, 3))
    assert (done.leader, done.leader_epoch) == (4, 1)
    assert [type(event) for event in outcome.events] == [e.PartitionAssigned, e.LeaderChanged, e.IsrChanged]


def test_a_leader_that_stays_keeps_its_epoch() -> None:
    cluster = started(2, 1, 4)
    cluster.do(cluster.change(isr=(2, 1, 4, 3)))
    done = cluster.partition()
    assert (done.replicas, done.leader, done.leader_epoch) == ((2, 1, 4), 1, 0)


def test_another_order_needs_no_move() -> None:
    cluster = started(3, 1, 2)
    assert (cluster.partition().replicas, cluster.partition().leader) == ((3, 1, 2), 1)
    assert not reassignment.is_moving(cluster.partition())


def test_live_members_of_the_target_are_awaited_dead_ones_are_not() -> None:
    cluster = Cluster(5)
    cluster.do(orders())
    cluster.do(cluster.change(isr=(1, 2)))
    cluster.do(move(2, 3, 4))
    cluster.do(cluster.change(isr=(2, 4, 1)))
    assert reassignment.is_moving(cluster.partition()), "node 3 is alive and not in sync yet"
    cluster.do(c.FenceBroker(broker_id=3, broker_epoch=3))
    cluster.do(cluster.change(isr=(2, 4, 1), bump_leader_epoch=True))
    assert (cluster.partition().replicas, cluster.partition().isr) == ((2, 3, 4), (2, 4))


def test_a_dead_added_replica_is_awaited() -> None:
    cluster = started(2, 3, 4)
    cluster.do(c.FenceBroker(broker_id=4, broker_epoch=4))
    cluster.do(c.FenceBroker(broker_id=1, broker_epoch=1))
    assert reassignment.is_moving(cluster.partition())


def test_fewer_replicas_leave_at_once_but_never_the_last_in_sync() -> None:
    assert started(2, 3).partition().replicas == (2, 3)
    cluster = Cluster(3)
    cluster.do(orders())
    cluster.do(cluster.change(isr=(1,)))
    cluster.do(move(2, 3))
    assert cluster.partition().replicas == (2, 3, 1)
    cluster.do(cluster.change(isr=(1, 2, 3)))
    assert (cluster.partition().replicas, cluster.partition().leader) == ((2, 3), 2)


def test_a_move_can_be_given_up() -> None:
    cluster = started(4, 5)
    assert cluster.partition().replicas == (4, 5, 1, 2, 3)
    cluster.do(cluster.change(isr=(4, 1, 2, 3)))
    assert cluster.do(CANCEL).refused is None
    after = cluster.partition()
    assert (after.replicas, after.adding, after.removing, after.isr) == ((1, 2, 3), (), (), (1, 2, 3))
    assert cluster.refused(CANCEL) == ErrorCode.no_reassignment_in_progress


def test_a_leader_among_the_added_hands_over_when_the_move_is_given_up() -> None:
    cluster = started(4, 5)
    cluster.do(cluster.change(isr=(4, 1, 2, 3)))
    cluster.do(cluster.change(leader=4))
    cluster.do(CANCEL)
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (1, 2)


def test_what_only_an_added_replica_has_is_not_given_up() -> None:
    cluster = started(4, 5)
    cluster.do(cluster.change(isr=(4, 1)))
    cluster.do(cluster.change(leader=4))
    cluster.do(cluster.change(isr=(4,)))
    assert cluster.refused(CANCEL) == ErrorCode.invalid_replica_assignment


def test_a_new_target_replaces_the_old_one() -> None:
    cluster = started(4, 2, 3)
    cluster.do(move(5, 2, 3))
    moving = cluster.partition()
    assert (moving.replicas, moving.adding, moving.removing) == ((5, 2, 3, 1), (5,), (1,))
    cluster.do(move(1, 2, 3))
    assert (cluster.partition().replicas, cluster.partition().adding) == ((1, 2, 3), ())


def test_a_move_that_was_planned_for_another_partition_epoch_is_refused() -> None:
    cluster = Cluster(5)
    cluster.do(orders())
    planned = msgspec.structs.replace(move(5, 2, 3), partition_epoch=cluster.partition().partition_epoch)
    assert cluster.do(move(4, 2, 3)).refused is None
    assert cluster.refused(planned) == ErrorCode.invalid_update_version
    assert cluster.partition().adding == (4,)
    cluster.do(msgspec.structs.replace(planned, partition_epoch=cluster.partition().partition_epoch))
    assert cluster.partition().adding == (5,)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (move(), ErrorCode.invalid_replica_assignment),
        (move(1, 1), ErrorCode.invalid_replica_assignment),
        (move(1, 9), ErrorCode.invalid_replica_assignment),
        (c.Reassign(topic_id=ORDERS, partition=7, target=(1,)), ErrorCode.unknown_topic_or_partition),
        (CANCEL, ErrorCode.no_reassignment_in_progress),
    ],
)
def test_targets_that_are_refused(command: c.Reassign, code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.do(orders())
    assert cluster.refused(command) == code


def test_every_change_of_the_partition_epoch_is_told() -> None:
    cluster = Cluster()
    cluster.do(orders())
    tp = TopicPartition("orders", 0)
    (event,) = cluster.do(cluster.change()).events
    assert event == e.PartitionAssigned(tp=tp, topic_id=ORDERS, replicas=(1, 2, 3), previous=(1, 2, 3))


# --- nodes that come and go ---


def test_a_node_with_replicas_is_not_removed_and_an_empty_one_may_not_come_back() -> None:
    cluster = Cluster(4)
    cluster.do(orders())
    assert cluster.refused(c.RemoveNode(broker_id=1)) == ErrorCode.reassignment_in_progress
    cluster.do(move(4, 2, 3))
    cluster.do(cluster.change(isr=(4, 2, 3, 1)))
    assert cluster.do(c.RemoveNode(broker_id=1)).events == (e.BrokerUnregistered(broker_id=1),)
    assert 1 not in cluster.state.brokers
    assert cluster.refused(register(1)) == ErrorCode.invalid_registration
    assert cluster.do(c.AdmitNode(broker_id=1)).events == (e.NodeAdmitted(broker_id=1),)
    assert cluster.do(register(1)).refused is None


def test_a_forced_removal_drops_replicas_but_not_the_last_copy() -> None:
    cluster = Cluster(3)
    cluster.do(orders((1, 2, 3), (1, 2), (1,)))
    cluster.do(c.ChangePartition(topic_id=ORDERS, partition=1, partition_epoch=0, isr=(1,)))
    assert cluster.do(c.RemoveNode(broker_id=1, force=True)).refused is None
    first, second, third = cluster.state.topics["orders"].partitions
    assert (first.replicas, first.isr, first.leader) == ((2, 3), (2, 3), 2)
    assert (second.replicas, second.isr, second.leader) == ((1, 2), (1,), NO_LEADER)
    assert (third.replicas, third.leader) == ((1,), NO_LEADER)


def test_an_unregistered_broker_leads_nothing() -> None:
    cluster = Cluster()
    cluster.do(orders())
    cluster.do(c.UnregisterBroker(broker_id=1))
    assert (cluster.partition().replicas, cluster.partition().isr) == ((1, 2, 3), (2, 3))
    assert cluster.partition().leader == 2
    assert cluster.do(register(1)).refused is None


def test_a_live_broker_is_not_unregistered_for_a_client() -> None:
    cluster = Cluster()
    cluster.do(orders())
    ask = c.UnregisterBroker(broker_id=1, fenced_only=True)
    refused = cluster.do(ask).refused
    assert refused is not None
    assert refused.code == ErrorCode.invalid_request
    assert cluster.partition().leader == 1
    cluster.do(c.FenceBroker(broker_id=1, broker_epoch=cluster.state.brokers[1].epoch))
    assert cluster.do(ask).refused is None
    assert 1 not in cluster.state.brokers


def test_a_node_being_drained_stays_so_over_a_restart() -> None:
    cluster = Cluster()
    cluster.do(c.DrainNode(broker_id=2))
    cluster.do(register(2, incarnation=50))
    assert cluster.state.brokers[2].draining
    cluster.do(c.DrainNode(broker_id=2, draining=False))
    assert not cluster.state.brokers[2].draining


# --- properties ---

brokers = st.integers(1, 6)
targets = st.lists(brokers, min_size=1, max_size=4, unique=True).map(tuple)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionRegistration:
    replicas = draw(targets)
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True).map(tuple))
    leader = draw(st.sampled_from((*isr, NO_LEADER)))
    return PartitionRegistration(partition=0, replicas=replicas, isr=isr, leader=leader)


@settings(deadline=None)
@given(partitions(), st.lists(targets, min_size=1, max_size=4), st.sets(brokers), st.data())
def test_moves_keep_copies_and_end_at_the_last_target(
    partition: PartitionRegistration, wanted: list[tuple[int, ...]], dead: set[int], data: st.DataObject
) -> None:
    def is_alive(broker: int) -> bool:
        return broker not in dead

    original = partition.replicas
    for target in wanted:
        moving = reassignment.begin(partition, target, is_alive)
        if moving is None:
            continue
        assert set(original) | set(target) == set(moving.replicas)
        assert reassignment.target_of(moving) == target
        assert set(reassignment.original_of(moving)) == set(original)
        done = reassignment.complete(moving, is_alive)
        if done is not moving:
            original = target
        partition = done
        caught_up = data.draw(st.sets(st.sampled_from(partition.replicas)))
        isr = tuple(r for r in partition.replicas if r in {*partition.isr, *caught_up})
        before = [r for r in isr if r in reassignment.target_of(partition)]
        after = reassignment.complete(
            PartitionRegistration(
                partition=0,
                replicas=partition.replicas,
                isr=isr,
                leader=partition.leader,
                adding=partition.adding,
                removing=partition.removing,
            ),
            is_alive,
        )
        if reassignment.is_moving(partition) and not reassignment.is_moving(after):
            original = after.replicas
            assert list(after.isr) == before
            assert {r for r in after.replicas if is_alive(r)} <= set(after.isr)
        assert after.leader == NO_LEADER or after.leader in after.isr
        partition = after
