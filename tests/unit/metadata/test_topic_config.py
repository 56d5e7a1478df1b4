"""The table of topic configs and the typed view of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import chronik.metadata
from chronik.metadata.broker_config import BROKER_CONFIGS
from chronik.metadata.topic_config import TOPIC_CONFIGS, TopicConfig, check_topic_configs
from chronik.model import ErrorCode, RequestError


def test_table_and_view_have_the_same_keys() -> None:
    assert {name.replace(".", "_") for name in TOPIC_CONFIGS} == {
        field.name for field in dataclasses.fields(TopicConfig)
    }


def test_defaults_are_valid_and_every_key_is_described() -> None:
    check_topic_configs({name: one.default for name, one in TOPIC_CONFIGS.items()})
    assert all(one.doc for one in TOPIC_CONFIGS.values())


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
        ("preallocate", "true"),
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
    """T34: a key is read somewhere, or its documentation says why no value makes a difference."""
    package = Path(chronik.metadata.__file__).parents[1]
    text = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "topic_config.py")
    through = {"message.timestamp.type": ".stamps_append_time", "cleanup.policy": ".deletes_old_segments"}
    without_effect = {"flush.messages": "already", "flush.ms": "already", "preallocate": "Always false"}
    for name, one in TOPIC_CONFIGS.items():
        if name in without_effect:
            assert without_effect[name] in one.doc
        else:
            attribute = through.get(name, f"config.{name.replace('.', '_')}")
            assert attribute in text or f'"{name}"' in text or f").{attribute[7:]}" in text, name


def test_every_broker_key_does_something() -> None:
    package = Path(chronik.metadata.__file__).parents[1]
    text = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "broker_config.py")
    defaults = {name for one in TOPIC_CONFIGS.values() for name, _ in one.server_names}
    assert [name for name in BROKER_CONFIGS if name not in defaults and f'"{name}"' not in text] == []


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
