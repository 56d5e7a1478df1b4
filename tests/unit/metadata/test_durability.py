"""Which topics acknowledge writes before they are synced."""

from __future__ import annotations

import pytest

from chronik.metadata.config_def import LONG_MAX
from chronik.metadata.durability import SYNCED, DurabilityPromise
from chronik.metadata.topic_config import TopicConfig
from chronik.replication.manager import log_config
from chronik.storage.log import LogConfig


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, SYNCED),
        ({"flush.ms": "1000"}, DurabilityPromise(1000, LONG_MAX)),
        ({"flush.messages": "500"}, DurabilityPromise(60_000, 500)),
        ({"flush.ms": "1000", "flush.messages": "500"}, DurabilityPromise(1000, 500)),
        ({"flush.ms": "86400000"}, DurabilityPromise(60_000, LONG_MAX)),
        ({"flush.ms": str(LONG_MAX)}, SYNCED),
        ({"flush.ms": str(LONG_MAX), "flush.messages": str(LONG_MAX)}, SYNCED),
        ({"flush.ms": str(LONG_MAX), "flush.messages": "2"}, DurabilityPromise(60_000, 2)),
        ({"flush.ms": "0"}, SYNCED),
        ({"flush.ms": "0", "flush.messages": "500"}, SYNCED),
        ({"flush.messages": "1"}, SYNCED),
        ({"flush.ms": "1000", "flush.messages": "1"}, SYNCED),
        ({"flush.ms": "garbage"}, SYNCED),
    ],
)
def test_a_bound_on_the_topic_itself_relaxes_it(configs: dict[str, str], expected: DurabilityPromise) -> None:
    assert TopicConfig.resolve(configs).durability == expected


def test_defaults_of_brokers_relax_nothing() -> None:
    """Who gives up acknowledged records says so topic by topic."""
    broker = {"log.flush.interval.ms": "1000", "log.flush.interval.messages": "500"}
    config = TopicConfig.resolve({"retention.ms": "5"}, broker, broker)
    assert config.flush_ms == 1000, "shown as in Apache Kafka"
    assert config.durability == SYNCED
    assert TopicConfig.resolve({"flush.ms": "20"}, broker).durability == DurabilityPromise(20, LONG_MAX)


def test_internal_topics_are_never_relaxed() -> None:
    config = TopicConfig.resolve({"flush.ms": "1000", "flush.messages": "7"})
    assert log_config("orders", config).sync_within_seconds == 1.0
    assert log_config("orders", config).sync_records == 7
    strict = LogConfig()
    for topic in ("__consumer_offsets", "__transaction_state", "__chronik_metadata"):
        found = log_config(topic, config)
        assert (found.sync_within_seconds, found.sync_records) == (0.0, strict.sync_records)


def test_the_promise_is_one_sentence() -> None:
    strict, relaxed = SYNCED.promise, DurabilityPromise(1000, 500).promise
    assert "neither a crash nor a power cut loses it" in strict
    assert "1000 ms or 500 records" in relaxed
    for sentence in (strict, relaxed, DurabilityPromise(5).promise):
        assert sentence.count(".") == 1
        assert sentence.endswith(".")
