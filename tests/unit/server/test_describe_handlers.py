"""ApiVersions, ListOffsets, DeleteRecords, DescribeCluster, DescribeLogDirs, ListPartitionReassignments."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import pytest

from chronik.metadata import commands as c
from chronik.metadata.levels import FEATURE, LEVEL_FIRST
from chronik.model import ErrorCode
from chronik.server.dispatch import Dispatcher
from chronik.server.handlers import all_handlers
from chronik.server.services import FeatureRange
from chronik.storage.epochs import EpochHistory
from chronik.wire.api import ApiKey
from tests.unit.server.harness import Harness

# --- ApiVersions ---


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_handled(version: int) -> None:
    harness = Harness()
    response = harness.call(
        ApiKey.API_VERSIONS,
        version,
        client_software_name="apache-kafka-java",
        client_software_version="4.1.0",
    )
    assert response.error_code == ErrorCode.none
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    unasked = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)
    offered = harness.dispatcher.api_ranges.items()
    assert ranges == {int(key): value for key, value in offered if key not in unasked}
    assert ranges[ApiKey.METADATA] == (0, 13)


@pytest.mark.parametrize(
    ("name", "valid"), [("librdkafka", True), ("a.b-c9", True), ("", False), ("-x", False), ("a b", False)]
)
def test_the_clients_software_has_a_proper_name(name: str, valid: bool) -> None:
    response = Harness().call(
        ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version="1.0"
    )
    assert response.error_code == (ErrorCode.none if valid else ErrorCode.invalid_request)


def test_features_are_told_as_the_version_allows() -> None:
    harness = Harness()
    features = {"transaction.version": FeatureRange(0, 2, 2), "group.version": FeatureRange(1, 1, 0)}
    harness.dispatcher = Dispatcher(
        all_handlers(), dataclasses.replace(harness.services, fixed_features=features), strict=True
    )

    def ask(version: int) -> tuple[set[str], dict[str, int]]:
        response = harness.call(
            ApiKey.API_VERSIONS, version, client_software_name="x", client_software_version="1"
        )
        levels = {f.name: f.max_version_level for f in response.finalized_features}
        return {f.name for f in response.supported_features}, levels

    finalized = {"transaction.version": 2, FEATURE: LEVEL_FIRST}
    assert ask(3) == ({"group.version", FEATURE}, finalized)
    assert ask(4) == ({"group.version", "transaction.version", FEATURE}, finalized)


# --- ListOffsets ---


def offset(
    harness: Harness, timestamp: int, *, version: int = 11, replica_id: int = -1, **fields: Any
) -> Any:
    response = harness.call(
        ApiKey.LIST_OFFSETS,
        version,
        replica_id=replica_id,
        isolation_level=fields.pop("isolation_level", 0),
        topics=[{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp, **fields}]}],
    )
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_earliest_and_latest_in_every_version(version: int) -> None:
    harness = Harness()
    harness.replicas.add("t")
    latest, earliest = offset(harness, -1, version=version), offset(harness, -2, version=version)
    assert (latest.offset, latest.timestamp, latest.error_code) == (100, -1, ErrorCode.none)
    assert earliest.offset == 10
    if version >= 4:
        assert latest.leader_epoch == 3


def test_the_start_has_the_epoch_of_its_record() -> None:
    harness = Harness()
    harness.replicas.add("t", leader_epoch=7, epochs=EpochHistory([(2, 0), (4, 50), (5, 80)]))
    assert [offset(harness, timestamp).leader_epoch for timestamp in (-2, -4)] == [2, 2]


def test_latest_depends_on_who_asks() -> None:
    harness = Harness()
    harness.replicas.add("t")
    assert offset(harness, -1, isolation_level=1).offset == 90
    assert offset(harness, -1, replica_id=2).offset == 120


def test_by_timestamp_nothing_beyond_what_may_be_read() -> None:
    harness = Harness()
    harness.replicas.add("t", timestamps=[(20, 1000, 1), (95, 2000, 2), (110, 3000, 3)])
    found = offset(harness, 500)
    assert (found.offset, found.timestamp, found.leader_epoch) == (20, 1000, 1)
    assert offset(harness, 1500).offset == 95
    assert offset(harness, 1500, isolation_level=1).offset == -1
    assert offset(harness, 2500).offset == -1
    assert offset(harness, 9999).offset == -1
    assert offset(harness, -3, replica_id=2).offset == 110


def test_special_timestamps_and_the_version_they_came_with() -> None:
    harness = Harness()
    harness.replicas.add("t", timestamps=[(20, 1000, 1), (95, 900, 2)])
    assert offset(harness, -3).offset == 20
    assert offset(harness, -4).offset == 10
    assert offset(harness, -5).offset == -1
    for timestamp, since in ((-3, 7), (-4, 8), (-5, 9), (-6, 11)):
        assert offset(harness, timestamp, version=since).error_code == ErrorCode.none
        assert offset(harness, timestamp, version=since - 1).error_code == ErrorCode.unsupported_version
    assert offset(harness, -7).error_code == ErrorCode.unsupported_version


def test_leader_epochs_are_fenced() -> None:
    harness = Harness()
    harness.replicas.add("t", leader_epoch=3)
    assert offset(harness, -1, current_leader_epoch=3).error_code == ErrorCode.none
    assert offset(harness, -1, current_leader_epoch=2).error_code == ErrorCode.fenced_leader_epoch
    assert offset(harness, -1, current_leader_epoch=4).error_code == ErrorCode.unknown_leader_epoch


def test_unknown_and_repeated_partitions() -> None:
    harness = Harness()
    assert offset(harness, -1).error_code == ErrorCode.unknown_topic_or_partition
    harness.replicas.add("t")
    twice = [{"partition_index": 0, "timestamp": -1}] * 2
    response = harness.call(
        ApiKey.LIST_OFFSETS, 5, replica_id=-1, topics=[{"name": "t", "partitions": twice}]
    )
    assert {p.error_code for p in response.topics[0].partitions} == {ErrorCode.invalid_request}


# --- OffsetForLeaderEpoch ---


@pytest.mark.parametrize("version", range(2, 5))
def test_where_epochs_ended(version: int) -> None:
    harness = Harness()
    harness.replicas.add("t", leader_epoch=7, epochs=EpochHistory([(2, 10), (4, 50), (5, 80)]))

    def end(epoch: int, current: int = -1, partition: int = 0) -> tuple[ErrorCode, int, int]:
        wanted = {"partition": partition, "leader_epoch": epoch, "current_leader_epoch": current}
        response = harness.call(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            version,
            replica_id=-1,
            topics=[{"topic": "t", "partitions": [wanted]}],
        )
        (found,) = response.topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert end(7) == (ErrorCode.none, 7, 120)
    assert end(6) == (ErrorCode.none, 5, 120)
    assert end(4) == (ErrorCode.none, 4, 80)
    assert end(3) == (ErrorCode.none, 2, 50)
    assert end(1) == (ErrorCode.none, 1, 10)
    assert end(8) == (ErrorCode.none, -1, -1)
    assert end(-1) == (ErrorCode.none, -1, -1)
    assert end(4, current=7) == (ErrorCode.none, 4, 80)
    assert end(4, current=6) == (ErrorCode.fenced_leader_epoch, -1, -1)
    assert end(4, current=8) == (ErrorCode.unknown_leader_epoch, -1, -1)
    assert end(4, partition=3) == (ErrorCode.unknown_topic_or_partition, -1, -1)


# --- DeleteRecords ---


def test_records_are_deleted_up_to_an_offset_or_the_watermark() -> None:
    harness = Harness()
    harness.topic("t")
    harness.topic("compacted", cleanup_policy="compact")
    harness.replicas.add("t")
    harness.replicas.add("compacted")

    def delete(topic: str, offset: int, partition: int = 0, version: int = 2) -> tuple[ErrorCode, int]:
        response = harness.call(
            ApiKey.DELETE_RECORDS,
            version,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
            timeout=1000,
        )
        result = response.topics[0].partitions[0]
        return result.error_code, result.low_watermark

    for version in range(3):
        assert delete("t", 50, version=version) == (ErrorCode.none, 50)
    assert delete("t", 20) == (ErrorCode.none, 50)
    assert delete("t", -1) == (ErrorCode.none, 100)
    assert delete("t", 101) == (ErrorCode.offset_out_of_range, -1)
    assert delete("t", -2) == (ErrorCode.offset_out_of_range, -1)
    assert delete("t", 1, partition=5) == (ErrorCode.unknown_topic_or_partition, -1)
    assert delete("compacted", 20) == (ErrorCode.policy_violation, -1)


# --- DescribeCluster, DescribeLogDirs, ListPartitionReassignments ---


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(version: int) -> None:
    harness = Harness()
    harness.submit(c.FenceBroker(broker_id=2, broker_epoch=harness.store.state.brokers[2].epoch))
    response = harness.call(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=1)
    assert (response.error_code, response.cluster_id, response.controller_id) == (
        ErrorCode.none,
        "test-cluster",
        1,
    )
    assert [broker.broker_id for broker in response.brokers] == [1, 3]
    if version >= 1:
        wrong = harness.call(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=2)
        assert wrong.error_code == ErrorCode.mismatched_endpoint_type
        assert wrong.error_message
    if version >= 2:
        everyone = harness.call(
            ApiKey.DESCRIBE_CLUSTER, version, include_fenced_brokers=True, endpoint_type=1
        )
        assert [(broker.broker_id, broker.is_fenced) for broker in everyone.brokers] == [
            (1, False),
            (2, True),
            (3, False),
        ]


@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_list_sizes(version: int) -> None:
    harness = Harness()
    harness.replicas.add("a", 0, size_bytes=10)
    harness.replicas.add("a", 1, size_bytes=20)
    harness.replicas.add("b", 0, size_bytes=30)

    def sizes(topics: Any) -> dict[tuple[str, int], int]:
        (directory,) = harness.call(ApiKey.DESCRIBE_LOG_DIRS, version, topics=topics).results
        assert (directory.error_code, directory.log_dir) == (ErrorCode.none, "/data")
        return {(t.name, p.partition_index): p.partition_size for t in directory.topics for p in t.partitions}

    assert sizes(None) == {("a", 0): 10, ("a", 1): 20, ("b", 0): 30}
    assert sizes([{"topic": "a", "partitions": [1, 7]}]) == {("a", 1): 20}
    assert sizes([]) == {}


def test_partitions_on_the_move_are_listed() -> None:
    harness = Harness(brokers=4)
    moving = harness.topic("moving", (1, 2), (2, 3))
    harness.topic("still", (1, 2))
    harness.submit(c.Reassign(topic_id=moving, partition=1, target=(3, 4)))

    def listed(topics: Any) -> list[tuple[str, int]]:
        response = harness.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics)
        return [(topic.name, p.partition_index) for topic in response.topics for p in topic.partitions]

    assert listed(None) == [("moving", 1)]
    assert (
        listed([{"name": "moving", "partition_indexes": [0]}, {"name": "x", "partition_indexes": [0]}]) == []
    )
    response = harness.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
    (partition,) = response.topics[0].partitions
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == (
        (3, 4, 2),
        (4,),
        (2,),
    )
    assert moving != UUID(int=0)
