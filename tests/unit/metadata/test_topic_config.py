"""The table of topic configs and the typed view of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

import chronik.metadata
from chronik.metadata.broker_config import BROKER_CONFIGS, check_broker_configs
from chronik.metadata.client_metrics import CLIENT_METRICS_CONFIGS
from chronik.metadata.config_def import ConfigDef, check_values
from chronik.metadata.group_config import GROUP_CONFIGS
from chronik.metadata.kafka_configs import KAFKA_CONFIGS
from chronik.metadata.topic_config import TOPIC_CONFIGS, TopicConfig, check_topic_configs
from chronik.model import ErrorCode, RequestError


def test_the_view_has_every_key_that_does_something() -> None:
    view = {field.name for field in dataclasses.fields(TopicConfig) if field.init}
    does = {name.replace(".", "_") for name, one in TOPIC_CONFIGS.items() if one.has_effect}
    assert does - view == set()
    assert view <= {name.replace(".", "_") for name in TOPIC_CONFIGS}


@pytest.mark.parametrize("table", [TOPIC_CONFIGS, BROKER_CONFIGS, GROUP_CONFIGS, CLIENT_METRICS_CONFIGS])
def test_defaults_are_valid_and_every_key_is_described(table: Mapping[str, ConfigDef]) -> None:
    check_values("", table, {name: one.default for name, one in table.items() if one.default is not None})
    assert all(one.doc for one in table.values())


def test_every_config_of_apache_kafka_is_known() -> None:
    ours = {
        "topic": TOPIC_CONFIGS,
        "broker": BROKER_CONFIGS,
        "group": GROUP_CONFIGS,
        "client-metrics": CLIENT_METRICS_CONFIGS,
    }
    assert KAFKA_CONFIGS.keys() == ours.keys()
    for resource, theirs in KAFKA_CONFIGS.items():
        assert theirs.keys() <= ours[resource].keys()
        for name, definition in theirs.items():
            assert ours[resource][name].kind == definition.kind, name
    assert len(KAFKA_CONFIGS["broker"]) > 300
    assert "leader.replication.throttled.rate" in BROKER_CONFIGS


@pytest.mark.parametrize(
    ("name", "value", "is_taken"),
    [
        ("sasl.kerberos.min.time.before.relogin", "58000", True),
        ("sasl.kerberos.min.time.before.relogin", "soon", False),
        ("sasl.login.refresh.buffer.seconds", "32768", False),
        ("num.io.threads", "0", False),
        ("num.io.threads", "2147483648", False),
        ("compression.lz4.level", "17", True),
        ("compression.lz4.level", "18", False),
        ("ssl.keystore.password", "x" * 40_000, False),
    ],
)
def test_what_has_no_effect_is_checked_all_the_same(name: str, value: str, is_taken: bool) -> None:
    assert not BROKER_CONFIGS[name].has_effect
    if is_taken:
        check_broker_configs({name: value})
        return
    with pytest.raises(RequestError) as refused:
        check_broker_configs({name: value})
    assert refused.value.code == ErrorCode.invalid_config


def test_what_apache_kafka_reads_at_start_only_is_not_changed() -> None:
    with pytest.raises(RequestError) as refused:
        check_broker_configs({"process.roles": "broker"})
    assert refused.value.code == ErrorCode.invalid_request


def test_kafkas_defaults() -> None:
    config = TopicConfig.resolve({})
    assert config.retention_ms == 604_800_000
    assert config.segment_bytes == 1 << 30
    assert config.max_message_bytes == 1_048_588
    assert config.deletes_old_segments
    assert not config.is_compacted
    assert config.min_insync_replicas == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", "9223372036854775808"),
        ("segment.bytes", "13"),
        ("segment.bytes", "2147483648"),
        ("cleanup.policy", "burn"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,burn"),
        ("compression.type", "zip"),
        ("message.timestamp.type", "createtime"),
        ("min.insync.replicas", "0"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "yes"),
        ("remote.storage.enable", "yes"),
        ("local.retention.ms", "-3"),
        ("retention.mss", "5"),
        ("retention.ms", None),
        ("retention.ms", "٣"),
    ],
)
def test_what_is_invalid_is_refused_by_name(name: str, value: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        check_topic_configs({name: value})
    assert refused.value.code == ErrorCode.invalid_config
    assert name in str(refused.value)


def test_every_key_does_something() -> None:
    """T34: a key is read somewhere, or its documentation begins with "Without effect"."""
    package = Path(chronik.metadata.__file__).parents[1]
    text = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "topic_config.py")
    through = {
        "message.timestamp.type": ".stamps_append_time",
        "cleanup.policy": ".deletes_old_segments",
        "flush.ms": "config.durability",
        "flush.messages": "config.durability",
        "unclean.leader.election.enable": '"unclean.leader.election.enable"',
    }
    for name, one in TOPIC_CONFIGS.items():
        if one.has_effect and not one.doc.startswith("Always"):
            attribute = through.get(name, f"config.{name.replace('.', '_')}")
            assert attribute in text, name


def test_every_broker_key_does_something() -> None:
    package = Path(chronik.metadata.__file__).parents[1]
    tables = ("broker_config.py", "fixed_configs.py")
    text = "".join(path.read_text() for path in package.rglob("*.py") if path.name not in tables)
    defaults = {name for one in TOPIC_CONFIGS.values() for name, _ in one.server_names}
    silent = [name for name in BROKER_CONFIGS if name not in defaults and f'"{name}"' not in text]
    assert [name for name in silent if BROKER_CONFIGS[name].has_effect] == []


def test_every_group_key_does_something() -> None:
    package = Path(chronik.metadata.__file__).parents[1]
    text = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "group_config.py")
    assert [name for name, one in GROUP_CONFIGS.items() if one.has_effect and f'"{name}"' not in text] == []


def test_sources_in_order_of_strength() -> None:
    dynamic, static = {"log.retention.hours": "2"}, {"log.retention.ms": "5", "min.insync.replicas": "2"}
    assert TopicConfig.resolve({}, dynamic, static).retention_ms == 7_200_000
    assert TopicConfig.resolve({"retention.ms": "-1"}, dynamic).retention_ms == -1
    assert TopicConfig.resolve({}, {}, static).retention_ms == 5
    assert TopicConfig.resolve({}, dynamic, static).min_insync_replicas == 2
    assert TopicConfig.resolve({}, {"log.retention.hours": "-1"}).retention_ms == -1
    assert TopicConfig.resolve({"retention.ms": "garbage"}, static).retention_ms == 5


def test_compact_and_delete_together() -> None:
    config = TopicConfig.resolve({"cleanup.policy": "compact, delete"})
    assert config.is_compacted
    assert config.deletes_old_segments
