"""A client's time-out of 0 means: try, do not wait. What needs no waiting succeeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from chronik.client.connection import Connection
from chronik.metadata.levels import FEATURE, LEVEL_FIRST, LEVEL_LAST
from chronik.model import ErrorCode, TopicPartition
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.server.dispatch import Dispatcher
from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey
from tests.unit.server.harness import Harness
from tests.unit.server.live import live
from tests.unit.server.test_fetch_sizes import PRODUCE_V8
from tests.unit.server.test_move_handlers import lead, partition
from tests.unit.server.test_produce_order import connect
from tests.unit.server.test_update_features import UPGRADE, update


async def produce(connection: Connection, timeout_ms: int) -> ErrorCode:
    batch = build_batch([Record(key=None, value=b"value", timestamp_ms=1)])
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": batch}]}]
    answer: Any = await connection.request(
        PRODUCE_V8, {"acks": -1, "timeout": timeout_ms, "topic_data": data}
    )
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def test_a_partition_without_followers_takes_what_it_is_sent(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        connection = await connect(node)
        assert [await produce(connection, timeout_ms) for timeout_ms in (0, 0, -1, 0)] == [ErrorCode.none] * 4
        connection.close()


async def test_followers_are_not_waited_for(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        connection = await connect(node)
        partition = node.node.parts.replicas.leader(TopicPartition("orders", 0))
        partition.isr = frozenset({*partition.isr, 99})
        # The first is read, the others are known by their beginning.
        assert [await produce(connection, 0) for _ in range(3)] == [ErrorCode.request_timed_out] * 3
        assert partition.log.durable_end_offset == 3
        connection.close()


async def test_delete_records_of_a_partition_without_followers(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        connection = await connect(node)
        assert [await produce(connection, 10_000) for _ in range(3)] == [ErrorCode.none] * 3
        cut = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}]
        answer = await node.call(ApiKey.DELETE_RECORDS, 2, topics=cut, timeout=0)
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.low_watermark) == (ErrorCode.none, 2)
        connection.close()


async def test_a_topic_is_created_and_deleted(tmp_path: Path) -> None:
    """Consensus takes time, so that the answer may be that it was not waited for; but it happens."""
    async with live(tmp_path) as node:
        state = node.node.parts.metadata
        wanted = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
        answer = await node.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=0, validate_only=False)
        assert answer.topics[0].error_code in (ErrorCode.none, ErrorCode.request_timed_out)
        await node.topic("later")
        assert state.state.partition(TopicPartition("orders", 0)) is not None
        answer = await node.call(ApiKey.DELETE_TOPICS, 5, topic_names=["orders"], timeout=0)
        assert answer.responses[0].error_code in (ErrorCode.none, ErrorCode.request_timed_out)
        await node.topic("latest")
        assert state.state.partition(TopicPartition("orders", 0)) is None


async def test_partitions_are_added_and_the_level_is_raised(tmp_path: Path) -> None:
    """As above: the answer may be that consensus was not waited for, but it happens."""
    async with live(tmp_path) as node:
        await node.topic("orders")
        metadata = node.node.parts.metadata
        answer = await node.call(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": "orders", "count": 3, "assignments": None}],
            timeout=0,
            validate_only=False,
        )
        assert answer.results[0].error_code in (ErrorCode.none, ErrorCode.request_timed_out)
        await node.topic("later")
        assert len(metadata.state.topics["orders"].partitions) == 3
        metadata.state.level = LEVEL_FIRST  # as in a cluster that release 0.1 founded
        code, _ = await update(node, LEVEL_LAST, timeout=0)
        assert code in (ErrorCode.none, ErrorCode.request_timed_out)
        await node.topic("latest")
        assert metadata.state.level == LEVEL_LAST


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_what_needs_no_waiting_succeeds(timeout_ms: int) -> None:
    """The log of this harness commits at once, as that of a single node with a fast disk may."""
    harness = Harness(brokers=4)
    topic_id = harness.topic("orders", (1, 2), (2, 3))
    made = harness.call(
        ApiKey.CREATE_PARTITIONS,
        3,
        topics=[{"name": "orders", "count": 3, "assignments": None}],
        timeout=timeout_ms,
        validate_only=False,
    )
    assert [one.error_code for one in made.results] == [ErrorCode.none]
    assert len(harness.services.state.topics["orders"].partitions) == 3

    lead(harness, topic_id, 0, 2)
    elected = harness.call(
        ApiKey.ELECT_LEADERS,
        2,
        election_type=0,
        topic_partitions=[{"topic": "orders", "partitions": [0]}],
        timeout=timeout_ms,
    )
    assert elected.error_code == ErrorCode.none
    assert elected.replica_election_results[0].partition_result[0].error_code == ErrorCode.none
    assert partition(harness).leader == 1

    moved = harness.call(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "replicas": [4, 2]}]}],
        timeout=timeout_ms,
    )
    assert moved.error_code == ErrorCode.none
    assert moved.responses[0].partitions[0].error_code == ErrorCode.none
    assert partition(harness).adding == (4,)

    async def every_level(_node_id: int) -> tuple[int, int]:
        return LEVEL_FIRST, LEVEL_LAST

    services = dataclasses.replace(harness.services, levels_of=every_level)
    harness.dispatcher = Dispatcher(all_handlers(), services, strict=True)
    harness.store.state.level = LEVEL_FIRST
    wanted = {"feature": FEATURE, "max_version_level": LEVEL_LAST, "upgrade_type": UPGRADE}
    raised = harness.call(ApiKey.UPDATE_FEATURES, 2, feature_updates=[wanted], timeout=timeout_ms)
    assert raised.error_code == ErrorCode.none
    assert harness.store.state.level == LEVEL_LAST
