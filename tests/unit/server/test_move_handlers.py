"""Moving replicas, electing leaders, the quorum, brokers that are gone."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from chronik.metadata import commands as c
from chronik.metadata.values import PartitionRegistration
from chronik.model import NO_LEADER, ErrorCode, TopicPartition
from chronik.wire.api import ApiKey
from tests.unit.server.harness import Harness


def partition(harness: Harness, number: int = 0) -> PartitionRegistration:
    found = harness.services.state.partition(TopicPartition("orders", number))
    assert found is not None
    return found


def alter(harness: Harness, *targets: tuple[int, list[int] | None], version: int = 1, **more: Any) -> Any:
    response = harness.call(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        version,
        timeout=30_000,
        topics=[
            {
                "name": "orders",
                "partitions": [{"partition_index": n, "replicas": target} for n, target in targets],
            }
        ],
        **more,
    )
    assert response.error_code == ErrorCode.none
    return [one.error_code for one in response.responses[0].partitions]


@pytest.mark.parametrize("version", [0, 1])
def test_a_move_begins_and_can_be_given_up(version: int) -> None:
    harness = Harness(brokers=4)
    harness.topic("orders", (1, 2), (2, 3))
    assert alter(harness, (0, [4, 2]), (1, [2, 3]), version=version) == [ErrorCode.none] * 2
    assert partition(harness).adding == (4,)
    assert alter(harness, (0, None), (1, None), version=version) == [
        ErrorCode.none,
        ErrorCode.no_reassignment_in_progress,
    ]
    assert set(partition(harness).replicas) == {1, 2}


def test_moves_that_are_refused_one_by_one() -> None:
    harness = Harness(brokers=4)
    harness.topic("orders", (1, 2), (2, 3))
    assert alter(harness, (0, [9]), (1, [2, 4]), (7, [1])) == [
        ErrorCode.invalid_replica_assignment,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert alter(harness, (0, [1, 1])) == [ErrorCode.invalid_replica_assignment]
    assert alter(harness, (0, [])) == [ErrorCode.invalid_replica_assignment]
    assert partition(harness, 1).adding == (4,)
    resize: dict[str, Any] = {"allow_replication_factor_change": False}
    assert alter(harness, (0, [1, 2, 3]), **resize) == [ErrorCode.invalid_replication_factor]
    assert alter(harness, (0, [2, 1]), **resize) == [ErrorCode.none]


def elect(harness: Harness, kind: int, partitions: list[int] | None, version: int = 2) -> Any:
    asked = None if partitions is None else [{"topic": "orders", "partitions": partitions}]
    fields: dict[str, Any] = {"topic_partitions": asked, "timeout": 30_000}
    if version > 0:
        fields["election_type"] = kind
    response = harness.call(ApiKey.ELECT_LEADERS, version, **fields)
    return {
        one.partition_id: one.error_code
        for topic in response.replica_election_results
        for one in topic.partition_result
    }


def lead(harness: Harness, topic_id: UUID, number: int, leader: int) -> None:
    epoch = partition(harness, number).partition_epoch
    harness.submit(
        c.ChangePartition(topic_id=topic_id, partition=number, partition_epoch=epoch, leader=leader)
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_preferred_leaders_are_elected(version: int) -> None:
    harness = Harness()
    topic_id = harness.topic("orders", (1, 2), (2, 3), (3, 1))
    lead(harness, topic_id, 0, 2)
    lead(harness, topic_id, 2, 1)
    harness.submit(c.FenceBroker(broker_id=3, broker_epoch=harness.services.state.brokers[3].epoch))
    assert elect(harness, 0, [0, 1, 2, 7], version) == {
        0: ErrorCode.none,
        1: ErrorCode.election_not_needed,
        2: ErrorCode.preferred_leader_not_available,
        7: ErrorCode.unknown_topic_or_partition,
    }
    assert partition(harness).leader == 1
    lead(harness, topic_id, 0, 2)
    # All partitions: those that need nothing are not listed.
    assert elect(harness, 0, None, version) == {
        0: ErrorCode.none,
        2: ErrorCode.preferred_leader_not_available,
    }


def test_an_unclean_election_takes_who_is_alive() -> None:
    harness = Harness()
    topic_id = harness.topic("orders", (1, 2), (3, 2), (1, 3))
    harness.submit(c.ChangePartition(topic_id=topic_id, partition=0, partition_epoch=0, isr=(1,)))
    for broker in (1, 3):
        epoch = harness.services.state.brokers[broker].epoch
        harness.submit(c.FenceBroker(broker_id=broker, broker_epoch=epoch))
    assert partition(harness).leader == NO_LEADER
    assert elect(harness, 1, [0, 1, 2]) == {
        0: ErrorCode.none,
        1: ErrorCode.election_not_needed,
        2: ErrorCode.eligible_leaders_not_available,
    }
    assert (partition(harness).leader, partition(harness).isr) == (2, (2,))
    assert elect(harness, 7, [0]) == {0: ErrorCode.invalid_request}


def test_elections_without_a_controller_say_so() -> None:
    harness = Harness()
    topic_id = harness.topic("orders", (1, 2))
    lead(harness, topic_id, 0, 2)
    harness.log.unavailable = True
    assert elect(harness, 0, [0]) == {0: ErrorCode.not_controller}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_described(version: int) -> None:
    harness = Harness(brokers=4)
    asked = [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}, {"partition_index": 1}]},
        {"topic_name": "orders", "partitions": [{"partition_index": 0}]},
    ]
    response = harness.call(ApiKey.DESCRIBE_QUORUM, version, topics=asked)
    assert response.error_code == ErrorCode.none
    found, other = response.topics[0].partitions
    assert other.error_code == ErrorCode.unknown_topic_or_partition
    assert response.topics[1].partitions[0].error_code == ErrorCode.unknown_topic_or_partition
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 7, 110)
    assert [(one.replica_id, one.log_end_offset) for one in found.current_voters] == [
        (1, 120),
        (2, 120),
        (3, 90),
    ]
    assert [one.replica_id for one in found.observers] == [4]
    if version >= 1:
        assert [one.last_caught_up_timestamp for one in found.current_voters] == [1_000, 995, -1]
    if version >= 2:
        assert [node.node_id for node in response.nodes] == [1, 2, 3, 4]


def test_the_quorum_without_a_leader() -> None:
    harness = Harness()
    harness.log.unavailable = True
    response = harness.call(ApiKey.DESCRIBE_QUORUM, 2, topics=[])
    assert response.error_code == ErrorCode.not_leader_or_follower


def test_a_live_broker_is_not_unregistered() -> None:
    harness = Harness(brokers=1)
    response = harness.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=1)
    assert response.error_code == ErrorCode.invalid_request
    assert "stop it first" in response.error_message
    assert list(harness.services.state.brokers) == [1]


def test_a_broker_that_is_gone_is_unregistered() -> None:
    harness = Harness()
    harness.topic("orders", (1, 2))
    harness.submit(c.FenceBroker(broker_id=1, broker_epoch=harness.services.state.brokers[1].epoch))
    response = harness.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=1)
    assert response.error_code == ErrorCode.none
    assert (partition(harness).leader, partition(harness).isr) == (2, (2,))
    again = harness.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=1)
    assert again.error_code == ErrorCode.broker_id_not_registered


def test_a_node_being_drained_gets_no_new_replicas() -> None:
    harness = Harness(brokers=3)
    harness.submit(c.DrainNode(broker_id=2))
    harness.call(
        ApiKey.CREATE_TOPICS,
        5,
        timeout=1_000,
        validate_only=False,
        topics=[
            {
                "name": "orders",
                "num_partitions": 6,
                "replication_factor": 2,
                "assignments": [],
                "configs": [],
            }
        ],
    )
    assert {node for n in range(6) for node in partition(harness, n).replicas} == {1, 3}
