"""CreateTopics, DeleteTopics, CreatePartitions, Metadata, DescribeTopicPartitions."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from typing import Any
from uuid import UUID

import pytest

from chronik.cluster.presence import NAMED_SECONDS
from chronik.metadata import commands as c
from chronik.model import ErrorCode, Limits, PeerError
from chronik.server.dispatch import Dispatcher
from chronik.server.handlers import all_handlers
from chronik.server.topics import ensure_topic
from chronik.wire.api import ApiKey
from tests.unit.server.harness import Harness

NOT_REQUESTED = -(2**31)


def create(harness: Harness, *topics: dict[str, Any], version: int = 7, **fields: Any) -> dict[str, Any]:
    filled = [{"num_partitions": 1, "replication_factor": 1, **topic} for topic in topics]
    response = harness.call(ApiKey.CREATE_TOPICS, version, topics=filled, timeout=5000, **fields)
    return {topic.name: topic for topic in response.topics}


@pytest.mark.parametrize("version", range(2, 8))
def test_topics_are_created_in_every_version(version: int) -> None:
    harness = Harness()
    topic = {
        "name": "orders",
        "num_partitions": 2,
        "replication_factor": 3,
        "configs": [{"name": "retention.ms", "value": "5"}],
    }
    result = create(harness, topic, version=version)["orders"]
    assert result.error_code == ErrorCode.none
    stored = harness.store.state.topics["orders"]
    assert [sorted(partition.replicas) for partition in stored.partitions] == [[1, 2, 3], [1, 2, 3]]
    assert stored.configs == {"retention.ms": "5"}
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 3)
        shown = {config.name: (config.value, config.config_source) for config in result.configs}
        assert shown["retention.ms"] == ("5", 1)
        assert shown["segment.bytes"] == ("1073741824", 5)
    if version >= 7:
        assert result.topic_id == stored.topic_id


def test_a_hundred_topics_of_a_request_are_one_entry_of_the_metadata_log() -> None:
    """S21: one commit for all of them, on every node."""
    harness = Harness()
    before = harness.log.index
    created = create(harness, *({"name": f"orders-{number}"} for number in range(100)))
    assert {result.error_code for result in created.values()} == {ErrorCode.none}
    assert len(harness.store.state.topics) == 100
    assert harness.log.index == before + 1


def test_defaults_fill_what_is_minus_one() -> None:
    harness = Harness(default_partitions=4, default_replication_factor=2)
    create(harness, {"name": "orders", "num_partitions": -1, "replication_factor": -1})
    partitions = harness.store.state.topics["orders"].partitions
    assert len(partitions) == 4
    assert {len(partition.replicas) for partition in partitions} == {2}


def test_validate_only_creates_nothing() -> None:
    harness = Harness()
    assert create(harness, {"name": "orders"}, validate_only=True)["orders"].error_code == ErrorCode.none
    assert not harness.store.state.topics


def test_one_bad_topic_does_not_spoil_the_others() -> None:
    harness = Harness()
    harness.topic("there")
    results = create(
        harness,
        {"name": "good"},
        {"name": "there"},
        {"name": "bad/name"},
        {"name": "twice"},
        {"name": "twice"},
        {"name": "zero", "num_partitions": 0},
        {"name": "wide", "replication_factor": 4},
        {"name": "no-factor", "replication_factor": 0},
        {"name": "odd-config", "configs": [{"name": "retention.msec", "value": "5"}]},
        {"name": "null-config", "configs": [{"name": "retention.ms", "value": None}]},
    )
    assert {name: result.error_code for name, result in results.items()} == {
        "good": ErrorCode.none,
        "there": ErrorCode.topic_already_exists,
        "bad/name": ErrorCode.invalid_topic_exception,
        "twice": ErrorCode.invalid_request,
        "zero": ErrorCode.invalid_partitions,
        "wide": ErrorCode.invalid_replication_factor,
        "no-factor": ErrorCode.invalid_replication_factor,
        "odd-config": ErrorCode.invalid_config,
        "null-config": ErrorCode.invalid_config,
    }
    assert "retention.msec" in results["odd-config"].error_message
    assert set(harness.store.state.topics) == {"there", "good"}


@pytest.mark.parametrize(
    ("assignments", "code"),
    [
        ({0: [2, 3], 1: [3, 1]}, ErrorCode.none),
        ({0: [2], 2: [3]}, ErrorCode.invalid_replica_assignment),
        ({0: [2, 2]}, ErrorCode.invalid_replica_assignment),
        ({0: [9]}, ErrorCode.invalid_replica_assignment),
        ({0: [1, 2], 1: [1]}, ErrorCode.invalid_replica_assignment),
        ({0: []}, ErrorCode.invalid_replica_assignment),
    ],
)
def test_manual_assignments(assignments: dict[int, list[int]], code: ErrorCode) -> None:
    harness = Harness()
    given = [{"partition_index": number, "broker_ids": ids} for number, ids in assignments.items()]
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": given}
    assert create(harness, topic)["t"].error_code == code
    if code == ErrorCode.none:
        partitions = harness.store.state.topics["t"].partitions
        assert [partition.replicas for partition in partitions] == [(2, 3), (3, 1)]
    mixed = {**topic, "name": "mixed", "num_partitions": 2}
    assert create(harness, mixed)["mixed"].error_code == ErrorCode.invalid_request


def test_no_controller_is_told_per_topic() -> None:
    harness = Harness()
    harness.log.unavailable = True
    for version in range(2, 8):
        assert create(harness, {"name": "t"}, version=version)["t"].error_code == ErrorCode.not_controller


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "__chronik_metadata", "a\n"])
def test_illegal_names_are_refused_everywhere(name: str) -> None:
    harness = Harness()
    assert create(harness, {"name": name})[name].error_code == ErrorCode.invalid_topic_exception
    metadata = harness.call(ApiKey.METADATA, 9, topics=[{"name": name}])
    assert metadata.topics[0].error_code == ErrorCode.invalid_topic_exception
    assert not harness.store.state.topics


def test_a_null_array_closes_the_connection() -> None:
    harness = Harness()
    with pytest.raises(PeerError):
        harness.frame(
            b"\x00\x00\x00\x1e"
            + b"\x00\x13\x00\x02"
            + bytes(4)
            + b"\xff\xff"
            + b"\xff\xff\xff\xff"
            + bytes(5)
        )


# --- DeleteTopics ---


@pytest.mark.parametrize("version", range(1, 6))
def test_topics_are_deleted_by_name(version: int) -> None:
    harness = Harness()
    harness.topic("a")
    response = harness.call(ApiKey.DELETE_TOPICS, version, topic_names=["a", "b"], timeout=1000)
    codes = {result.name: result.error_code for result in response.responses}
    assert codes == {"a": ErrorCode.none, "b": ErrorCode.unknown_topic_or_partition}
    assert not harness.store.state.topics


def test_topics_are_deleted_by_id_and_oddities_are_refused() -> None:
    harness = Harness()
    by_id, by_both = harness.topic("a"), harness.topic("both")
    harness.topic("b")
    harness.topic("twice")
    response = harness.call(
        ApiKey.DELETE_TOPICS,
        6,
        topics=[
            {"name": None, "topic_id": by_id},
            {"name": "b"},
            {"name": None, "topic_id": UUID(int=5)},
            {"name": None},
            {"name": "both", "topic_id": by_both},
            {"name": "twice"},
            {"name": "twice"},
        ],
    )
    codes = {(result.name, result.topic_id): result.error_code for result in response.responses}
    assert codes.pop(("a", by_id)) == ErrorCode.none
    assert [code for (name, _), code in codes.items() if name == "b"] == [ErrorCode.none]
    assert codes[None, UUID(int=5)] == ErrorCode.unknown_topic_id
    assert codes[None, None] == ErrorCode.invalid_request
    assert codes["both", by_both] == ErrorCode.invalid_request
    assert codes["twice", None] == ErrorCode.invalid_request
    assert set(harness.store.state.topics) == {"both", "twice"}


# --- CreatePartitions ---


def test_partitions_are_added_and_nonsense_is_refused() -> None:
    harness = Harness()
    for name in ("a", "manual", "short", "same", "fewer", "dup"):
        harness.topic(name, (1, 2), (2, 3))

    def wanted(name: str, count: int, *assignments: list[int]) -> dict[str, Any]:
        given = [{"broker_ids": ids} for ids in assignments] if assignments else None
        return {"name": name, "count": count, "assignments": given}

    response = harness.call(
        ApiKey.CREATE_PARTITIONS,
        3,
        topics=[
            wanted("a", 5),
            wanted("manual", 3, [3, 1]),
            wanted("short", 4, [3, 1]),
            wanted("same", 2),
            wanted("fewer", 1),
            wanted("missing", 3),
            wanted("dup", 3),
            wanted("dup", 3),
        ],
        timeout=1000,
    )
    assert {result.name: result.error_code for result in response.results} == {
        "a": ErrorCode.none,
        "manual": ErrorCode.none,
        "short": ErrorCode.invalid_replica_assignment,
        "same": ErrorCode.invalid_partitions,
        "fewer": ErrorCode.invalid_partitions,
        "missing": ErrorCode.unknown_topic_or_partition,
        "dup": ErrorCode.invalid_request,
    }
    topics = harness.store.state.topics
    assert [len(partition.replicas) for partition in topics["a"].partitions] == [2] * 5
    assert topics["manual"].partitions[2].replicas == (3, 1)


def test_partitions_are_only_validated_when_asked() -> None:
    harness = Harness()
    harness.topic("a")
    for version in range(4):
        response = harness.call(
            ApiKey.CREATE_PARTITIONS,
            version,
            topics=[{"name": "a", "count": 3, "assignments": None}],
            validate_only=True,
        )
        assert response.results[0].error_code == ErrorCode.none
    assert len(harness.store.state.topics["a"].partitions) == 1


# --- Metadata ---


@pytest.mark.parametrize("version", range(14))
def test_metadata_in_every_version(version: int) -> None:
    harness = Harness()
    topic_id = harness.topic("orders", (1, 2, 3), (2, 3, 1))
    response = harness.call(ApiKey.METADATA, version, topics=[{"name": "orders"}])
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [
        (n, f"host-{n}", 9092) for n in (1, 2, 3)
    ]
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (ErrorCode.none, "orders")
    assert [partition.leader_id for partition in topic.partitions] == [1, 2]
    assert topic.partitions[1].replica_nodes == (2, 3, 1)
    if version >= 10:
        assert topic.topic_id == topic_id
    if version >= 2:
        assert response.cluster_id == "test-cluster"
    if version >= 1:
        assert response.controller_id == 1


def test_all_topics_by_null_and_none_by_an_empty_list() -> None:
    harness = Harness()
    harness.topic("a")
    harness.topic("b")
    assert len(harness.call(ApiKey.METADATA, 0, topics=[]).topics) == 2
    for version in range(1, 14):
        assert len(harness.call(ApiKey.METADATA, version, topics=None).topics) == 2
        assert harness.call(ApiKey.METADATA, version, topics=[]).topics == ()


def test_auto_creation_needs_the_settings_and_the_clients_leave() -> None:
    harness = Harness()

    def ask(version: int = 12, **fields: Any) -> ErrorCode:
        return harness.call(ApiKey.METADATA, version, topics=[{"name": "new"}], **fields).topics[0].error_code

    assert ask(allow_auto_topic_creation=False) == ErrorCode.unknown_topic_or_partition
    assert not harness.store.state.topics
    response = harness.call(ApiKey.METADATA, 12, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert response.topics[0].error_code == ErrorCode.none
    assert response.topics[0].partitions[0].leader_id in (1, 2, 3)
    harness = Harness(auto_create_topics=False)
    assert ask(allow_auto_topic_creation=True) == ErrorCode.unknown_topic_or_partition


def test_auto_creation_without_controller_lets_the_client_retry() -> None:
    harness = Harness()
    harness.log.unavailable = True
    response = harness.call(ApiKey.METADATA, 12, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert response.topics[0].error_code == ErrorCode.leader_not_available


def test_topics_by_id() -> None:
    harness = Harness()
    topic_id = harness.topic("orders")
    response = harness.call(
        ApiKey.METADATA,
        12,
        topics=[{"topic_id": topic_id, "name": None}, {"topic_id": UUID(int=9), "name": None}],
    )
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("orders", ErrorCode.none),
        (None, ErrorCode.unknown_topic_id),
    ]
    old = harness.call(ApiKey.METADATA, 10, topics=[{"topic_id": topic_id, "name": "orders"}])
    assert old.topics[0].error_code == ErrorCode.invalid_request


def test_fenced_brokers_are_offline_and_a_partition_without_leader_says_so() -> None:
    harness = Harness()
    topic_id = harness.topic("orders")
    harness.submit(c.FenceBroker(broker_id=2, broker_epoch=harness.store.state.brokers[2].epoch))
    harness.submit(c.ChangePartition(topic_id=topic_id, partition=0, partition_epoch=1, leader=-1))
    harness.now += NAMED_SECONDS + 1
    response = harness.call(ApiKey.METADATA, 12, topics=[{"name": "orders"}])
    (partition,) = response.topics[0].partitions
    assert partition.error_code == ErrorCode.leader_not_available
    assert partition.offline_replicas == (2,)
    assert [broker.node_id for broker in response.brokers] == [1, 3]


def test_authorized_operations_only_when_asked() -> None:
    harness = Harness()
    harness.topic("orders")
    plain = harness.call(ApiKey.METADATA, 8, topics=None)
    asked = harness.call(
        ApiKey.METADATA,
        8,
        topics=None,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert plain.topics[0].topic_authorized_operations == NOT_REQUESTED
    assert plain.cluster_authorized_operations == NOT_REQUESTED
    assert asked.topics[0].topic_authorized_operations == 0b110111111000
    assert asked.cluster_authorized_operations == 0b1111110100000


# --- DescribeTopicPartitions ---


def test_partitions_come_in_pages() -> None:
    harness = Harness()
    harness.topic("a", *[(1, 2)] * 3)
    harness.topic("b", *[(1, 2)] * 2)
    harness.topic("c")
    seen = []
    cursor = None
    for _ in range(10):
        response = harness.call(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=2, cursor=cursor
        )
        assert sum(len(topic.partitions) for topic in response.topics) <= 2
        seen += [(topic.name, p.partition_index) for topic in response.topics for p in topic.partitions]
        if response.next_cursor is None:
            break
        cursor = {
            "topic_name": response.next_cursor.topic_name,
            "partition_index": response.next_cursor.partition_index,
        }
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]


def test_named_topics_and_unknown_ones() -> None:
    harness = Harness()
    harness.topic("a")
    response = harness.call(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "a"}, {"name": "z"}, {"name": "?"}]
    )
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "a": ErrorCode.none,
        "z": ErrorCode.unknown_topic_or_partition,
        "?": ErrorCode.invalid_topic_exception,
    }
    assert response.next_cursor is None
    (partition,) = next(topic for topic in response.topics if topic.name == "a").partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())


def test_a_timeout_is_told_per_topic() -> None:
    harness = Harness()

    async def never(data: bytes) -> int:
        return 1_000_000  # in the log, but never committed

    harness.log.append = never  # type: ignore[method-assign]
    result = harness.call(
        ApiKey.CREATE_TOPICS,
        7,
        topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        timeout=datetime.timedelta(milliseconds=10),
    )
    assert result.topics[0].error_code == ErrorCode.request_timed_out


def limited(**limits: int) -> Harness:
    harness = Harness()
    harness.topic("a")
    harness.services = dataclasses.replace(harness.services, limits=Limits(**limits))
    harness.dispatcher = Dispatcher(all_handlers(), harness.services, strict=True)
    return harness


def add(harness: Harness, *counts: tuple[str, int]) -> list[ErrorCode]:
    wanted = [{"name": name, "count": count, "assignments": None} for name, count in counts]
    response = harness.call(ApiKey.CREATE_PARTITIONS, 3, topics=wanted, timeout=1000)
    return [result.error_code for result in response.results]


def test_a_request_makes_so_many_partitions_and_no_more() -> None:
    harness = limited(partitions_per_request_max=3)
    assert create(harness, {"name": "b", "num_partitions": 3})["b"].error_code == ErrorCode.none
    assert create(harness, {"name": "c", "num_partitions": 4})["c"].error_code == ErrorCode.policy_violation
    refused = create(harness, {"name": "c", "num_partitions": 2}, {"name": "d", "num_partitions": 2})
    assert [one.error_code for one in refused.values()] == [ErrorCode.policy_violation] * 2
    assert add(harness, ("a", 5)) == [ErrorCode.policy_violation]
    assert add(harness, ("a", 3), ("b", 5)) == [ErrorCode.policy_violation] * 2
    assert add(harness, ("a", 4)) == [ErrorCode.none]
    assert harness.store.state.topics.keys() == {"a", "b"}


def mention(harness: Harness, *names: str) -> list[ErrorCode]:
    wanted = [{"name": name} for name in names]
    response = harness.call(ApiKey.METADATA, 12, topics=wanted, allow_auto_topic_creation=True)
    return [topic.error_code for topic in response.topics]


def test_a_metadata_request_that_mentions_too_many_topics_makes_none_of_them() -> None:
    """Each name was counted for itself: one request made topics until its time was over."""
    harness = limited(partitions_per_request_max=3)
    refused = [ErrorCode.none, *[ErrorCode.policy_violation] * 4]
    assert mention(harness, "a", "b", "c", "d", "e") == refused
    assert harness.store.state.topics.keys() == {"a"}
    assert mention(harness, "a", "b", "b", "c", "d", "__consumer_offsets") == [
        *[ErrorCode.none] * 4,
        ErrorCode.unknown_topic_or_partition,
    ]


def test_a_cluster_has_so_many_partitions_and_no_more() -> None:
    harness = limited(cluster_partitions_max=4)
    assert create(harness, {"name": "b", "num_partitions": 4})["b"].error_code == ErrorCode.policy_violation
    assert create(harness, {"name": "b", "num_partitions": 3})["b"].error_code == ErrorCode.none
    assert add(harness, ("a", 2)) == [ErrorCode.policy_violation]


def test_two_clients_that_create_the_same_topic_both_get_it() -> None:
    harness = Harness()

    async def both() -> list[UUID]:
        topics = await asyncio.gather(*(ensure_topic(harness.services, "new") for _ in range(2)))
        return [topic.topic_id for topic in topics]

    append = harness.log.append

    async def late(data: bytes) -> int:
        await asyncio.sleep(0)
        return await append(data)

    harness.log.append = late  # type: ignore[method-assign]
    first, second = asyncio.run(both())
    assert first == second
