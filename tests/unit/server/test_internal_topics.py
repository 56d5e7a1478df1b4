"""Internal topics belong to the coordinators: clients neither make nor break them (T41, R04)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from chronik.metadata.commands import TOPIC_RESOURCE
from chronik.model import SCHEMAS_TOPIC, ErrorCode
from chronik.server.internal_topics import mend_internal_topics
from chronik.wire.api import ApiKey
from tests.unit.server.harness import Harness

OFFSETS = "__consumer_offsets"
INTERNAL = (OFFSETS, SCHEMAS_TOPIC, "__transaction_state", "__share_group_state", "__chronik_anything")
TIMEOUT = timedelta(seconds=5)


def find_coordinator(harness: Harness) -> None:
    found = harness.call(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["group"])
    assert found.coordinators[0].error_code == ErrorCode.none


def alter(harness: Harness, *, replace: bool, **configs: str) -> Any:
    shown = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": OFFSETS, "configs": shown}
    key = ApiKey.ALTER_CONFIGS if replace else ApiKey.INCREMENTAL_ALTER_CONFIGS
    return harness.call(key, 1, resources=[resource]).responses[0]


@pytest.mark.parametrize("name", INTERNAL)
def test_no_client_creates_one(name: str) -> None:
    harness = Harness()
    asked = harness.call(ApiKey.METADATA, 9, topics=[{"name": name}], allow_auto_topic_creation=True)
    assert asked.topics[0].error_code == ErrorCode.unknown_topic_or_partition
    new = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    made = harness.call(ApiKey.CREATE_TOPICS, 7, topics=[new], timeout=TIMEOUT)
    assert made.topics[0].error_code == ErrorCode.invalid_topic_exception
    assert name not in harness.services.state.topics


def test_a_coordinator_makes_its_own() -> None:
    harness = Harness(offsets_topic_partitions=7)
    find_coordinator(harness)
    topic = harness.services.state.topics[OFFSETS]
    assert len(topic.partitions) == 7
    assert topic.configs["cleanup.policy"] == "compact"


def test_it_is_neither_deleted_nor_enlarged_nor_emptied() -> None:
    harness = Harness()
    find_coordinator(harness)
    before = harness.services.state.topics[OFFSETS]
    by_name = harness.call(ApiKey.DELETE_TOPICS, 5, topic_names=[OFFSETS], timeout=TIMEOUT)
    by_id = harness.call(
        ApiKey.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": before.topic_id}], timeout=TIMEOUT
    )
    more = {"name": OFFSETS, "count": 99, "assignments": None}
    enlarged = harness.call(ApiKey.CREATE_PARTITIONS, 3, topics=[more], timeout=TIMEOUT)
    cut = {"name": OFFSETS, "partitions": [{"partition_index": 0, "offset": -1}]}
    emptied = harness.call(ApiKey.DELETE_RECORDS, 2, topics=[cut], timeout=TIMEOUT)
    assert by_name.responses[0].error_code == ErrorCode.invalid_request
    assert by_id.responses[0].error_code == ErrorCode.invalid_request
    assert enlarged.results[0].error_code == ErrorCode.invalid_request
    assert emptied.topics[0].partitions[0].error_code == ErrorCode.invalid_topic_exception
    assert harness.services.state.topics[OFFSETS] == before


def test_its_state_cannot_be_made_to_expire() -> None:
    harness = Harness()
    find_coordinator(harness)
    for policy in ("delete", "compact,delete"):
        assert alter(harness, replace=False, cleanup_policy=policy).error_code == ErrorCode.invalid_config
    # The old AlterConfigs drops what it does not name, the cleanup policy here.
    assert alter(harness, replace=True, retention_ms="1").error_code == ErrorCode.invalid_config
    assert alter(harness, replace=False, segment_bytes="1048576").error_code == ErrorCode.none
    configs = harness.services.state.topics[OFFSETS].configs
    assert (configs["cleanup.policy"], configs["segment.bytes"]) == ("compact", "1048576")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_message_bytes", "10"),
        ("segment_bytes", "14"),
        ("segment_ms", "1"),
        ("segment_index_bytes", "4"),
        ("min_cleanable_dirty_ratio", "1"),
        ("min_compaction_lag_ms", str(2**62)),
    ],
)
def test_it_cannot_be_made_useless(name: str, value: str) -> None:
    harness = Harness()
    find_coordinator(harness)
    before = harness.services.state.topics[OFFSETS].configs
    refused = alter(harness, replace=False, **{name: value})
    assert refused.error_code == ErrorCode.invalid_config
    assert name.replace("_", ".") in refused.error_message
    assert harness.services.state.topics[OFFSETS].configs == before
    assert alter(harness, replace=False, min_insync_replicas="1").error_code == ErrorCode.none


def test_more_in_sync_replicas_than_there_are_means_all(caplog: pytest.LogCaptureFixture) -> None:
    """As in any topic, so it is neither refused nor lowered."""
    harness = Harness()
    find_coordinator(harness)
    assert alter(harness, replace=False, min_insync_replicas="100").error_code == ErrorCode.none
    asyncio.run(mend_internal_topics(harness.services))
    assert harness.services.topic_config(OFFSETS).min_insync_replicas == 100
    assert caplog.records == []


@pytest.mark.parametrize("when", ["the node starts", "a coordinator is asked for"])
def test_one_that_was_made_wrongly_is_mended(when: str, caplog: pytest.LogCaptureFixture) -> None:
    """As an older node made it for a client: one partition and a week's retention."""
    harness = Harness()
    harness.topic(OFFSETS, (1,), retention_ms="604800000")
    if when == "the node starts":
        asyncio.run(mend_internal_topics(harness.services))
    else:
        find_coordinator(harness)
    config = harness.services.topic_config(OFFSETS)
    assert (config.is_compacted, config.deletes_old_segments) == (True, False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "it is compacted now" in caplog.text
    asyncio.run(mend_internal_topics(harness.services))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("partitions", "configs"),
    [
        pytest.param(1, {"retention_ms": "604800000"}, id="its records expire"),
        pytest.param(3, {"cleanup_policy": "compact"}, id="it has partitions"),
        pytest.param(1, {"cleanup_policy": "compact,delete"}, id="it does both"),
    ],
)
def test_a_clients_topic_with_the_registrys_name_is_left_to_the_client(
    partitions: int, configs: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """As a node made it that had no registry. Compaction would lose all but the last record of each key."""
    harness = Harness()
    harness.topic(SCHEMAS_TOPIC, *[(1,)] * partitions, **configs)
    before = harness.services.state.topics[SCHEMAS_TOPIC]
    asyncio.run(mend_internal_topics(harness.services))
    assert harness.services.state.topics[SCHEMAS_TOPIC] == before
    assert "it is left as it is" in caplog.text
    deleted = harness.call(ApiKey.DELETE_TOPICS, 5, topic_names=[SCHEMAS_TOPIC], timeout=TIMEOUT)
    assert deleted.responses[0].error_code == ErrorCode.none
    assert SCHEMAS_TOPIC not in harness.services.state.topics


def test_the_topic_of_confluents_registry_is_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.topic(SCHEMAS_TOPIC, (1,), cleanup_policy="compact")
    asyncio.run(mend_internal_topics(harness.services))
    assert caplog.records == []
    deleted = harness.call(ApiKey.DELETE_TOPICS, 5, topic_names=[SCHEMAS_TOPIC], timeout=TIMEOUT)
    assert deleted.responses[0].error_code == ErrorCode.invalid_request
