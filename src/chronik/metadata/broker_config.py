"""Broker configs by Kafka's names: defaults for topics, which can be changed live, and facts of the node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from chronik.metadata.config_def import INT_MAX, LONG_MAX, ConfigDef, ConfigKind, check_values
from chronik.metadata.durability import FLUSH_CONFIGS
from chronik.metadata.fixed_configs import FIXED, SETTING_OF
from chronik.metadata.kafka_configs import FIXED_IN_KAFKA, without_effect
from chronik.metadata.topic_config import TOPIC_CONFIGS, check_topic_conflicts
from chronik.model import WITHOUT_EFFECT, ErrorCode, RequestError

__all__ = ["BROKER_CONFIGS", "READ_ONLY", "broker_value", "check_broker_configs", "check_broker_conflicts"]

_UNITS: Final = {60_000: "minutes", 3_600_000: "hours"}


def _topic_defaults() -> Iterator[ConfigDef]:
    for topic in TOPIC_CONFIGS.values():
        doc = f"Default of the topic config {topic.name}. {topic.doc}"
        if topic.name in FLUSH_CONFIGS:
            doc = f"{WITHOUT_EFFECT}: who gives up acknowledged records says so by topic, with {topic.name}."
        for name, factor in topic.server_names:
            if factor == 1:
                yield replace(topic, name=name, server_names=(), doc=doc)
            else:
                yield ConfigDef(
                    name=name,
                    kind=ConfigKind.INT,
                    default=None,
                    doc=f"The same in {_UNITS[factor]}, where the value in milliseconds is not set. {doc}",
                    low=topic.low,
                    high=INT_MAX,
                )


def _dynamic(name: str, kind: ConfigKind, default: str, doc: str, low: float, high: float) -> ConfigDef:
    return ConfigDef(name=name, kind=kind, default=default, doc=doc, low=low, high=high)


def _ms(name: str, default: int, doc: str, low: int = 1) -> ConfigDef:
    return _dynamic(name, ConfigKind.INT, str(default), doc, low, INT_MAX)


def _limit(name: str, doc: str) -> ConfigDef:
    """One whose default is a setting of the node, or what the system allows."""
    return ConfigDef(name=name, kind=ConfigKind.INT, default=None, doc=doc, low=1, high=INT_MAX)


_COORDINATORS: Final = (
    ConfigDef(
        name="group.consumer.assignors",
        kind=ConfigKind.LIST,
        default="uniform,range",
        choices=("uniform", "range"),
        doc="Assignors that members of consumer groups (KIP-848) may ask for; the first is the default.",
    ),
    _ms("group.consumer.heartbeat.interval.ms", 5_000, "How often members of consumer groups report."),
    _ms(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        "Largest consumer.heartbeat.interval.ms that a group may have.",
    ),
    _ms(
        "group.consumer.max.session.timeout.ms",
        60_000,
        "Largest consumer.session.timeout.ms that a group may have.",
    ),
    _dynamic(
        "group.consumer.max.size", ConfigKind.INT, "10000", "Members of one consumer group.", 1, INT_MAX
    ),
    _ms(
        "group.consumer.min.heartbeat.interval.ms",
        5_000,
        "Smallest consumer.heartbeat.interval.ms that a group may have.",
    ),
    _ms(
        "group.consumer.min.session.timeout.ms",
        45_000,
        "Smallest consumer.session.timeout.ms that a group may have.",
    ),
    _ms(
        "group.consumer.session.timeout.ms",
        45_000,
        "A member of a consumer group that sends no heartbeat within this time is removed.",
    ),
    _ms(
        "group.initial.rebalance.delay.ms",
        500,
        "How long an empty classic group waits for more members to share with, again while they come.",
        low=0,
    ),
    _ms("group.max.session.timeout.ms", 1_800_000, "Longest session of a member of a classic group."),
    _dynamic("group.max.size", ConfigKind.INT, "10000", "Members of one classic group.", 1, INT_MAX),
    _ms("group.min.session.timeout.ms", 6_000, "Shortest session of a member of a classic group."),
    _dynamic(
        "offset.metadata.max.bytes",
        ConfigKind.INT,
        "4096",
        "Longest text that may be committed with an offset.",
        0,
        INT_MAX,
    ),
    _dynamic(
        "offsets.retention.check.interval.ms",
        ConfigKind.LONG,
        "600000",
        "How often committed offsets are looked at for those past their retention.",
        1,
        LONG_MAX,
    ),
    _dynamic(
        "offsets.retention.minutes",
        ConfigKind.INT,
        str(7 * 24 * 60),
        "How long offsets of a group without members, or of topics that nobody reads, are kept.",
        1,
        INT_MAX,
    ),
    _ms("transaction.max.timeout.ms", 900_000, "Longest time-out that a transactional producer may ask for."),
    _ms(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often transactional ids are looked at for those that were not used for long.",
    ),
    _ms(
        "transactional.id.expiration.ms",
        7 * 24 * 3_600_000,
        "A transactional id that was not used within this time is forgotten.",
    ),
)
"""Kafka reads these at start only; here they may be changed at any time and hold from the next request on."""

_DYNAMIC: Final = (
    _dynamic(
        "log.cleaner.backoff.ms",
        ConfigKind.LONG,
        "15000",
        "How often compacted topics are looked at.",
        1,
        LONG_MAX,
    ),
    _dynamic(
        "log.cleaner.dedupe.buffer.size",
        ConfigKind.LONG,
        str(64 * 2**20),
        "Memory for the keys of one compaction; a log with more keys takes several.",
        2**20,
        LONG_MAX,
    ),
    _dynamic(
        "log.cleaner.io.max.bytes.per.second",
        ConfigKind.DOUBLE,
        str(32 * 2**20),
        "Bytes that compaction reads and writes per second at most.",
        1,
        math.inf,
    ),
    _dynamic(
        "log.retention.check.interval.ms",
        ConfigKind.LONG,
        "300000",
        "How often logs are looked at for segments past their retention.",
        1,
        LONG_MAX,
    ),
    _limit(
        "max.connection.creation.rate",
        "New connections per second that each listener takes; for whom it counts: as `max.connections`.",
    ),
    _limit(
        "max.connections",
        "Connections of clients at once; at most half of the file descriptors that the system allows. Those "
        "from the machines of the cluster's nodes, and those at the nodes' own listener if there are others, "
        "are limited by the node's settings alone.",
    ),
    _limit(
        "max.connections.per.ip",
        "Connections of clients at one address; for whom it counts: as `max.connections`.",
    ),
    _dynamic(
        "producer.id.expiration.ms",
        ConfigKind.INT,
        "86400000",
        "How long a partition remembers a producer that writes nothing.",
        1,
        INT_MAX,
    ),
)

_EFFECTIVE: Final = {one.name: one for one in (*_topic_defaults(), *FIXED, *_COORDINATORS, *_DYNAMIC)}

BROKER_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    dict(sorted({**without_effect("broker"), **_EFFECTIVE}.items()))
)

READ_ONLY: Final = frozenset({one.name for one in FIXED} | (FIXED_IN_KAFKA - _EFFECTIVE.keys()))
"""Known at start and not changed by AlterConfigs."""


def broker_value(name: str, layers: tuple[Mapping[str, str], ...]) -> Any:
    """The value in force; `layers` strongest first. One that cannot be read falls back to the next, the last
    to the default: None if there is none."""
    definition = BROKER_CONFIGS[name]
    for layer in layers:
        if name in layer:
            try:
                return definition.parse(layer[name])
            except ValueError:
                continue
    return None if definition.default is None else definition.parse(definition.default)


def check_broker_configs(values: Mapping[str, str | None]) -> None:
    """RequestError that names the first key that is unknown, fixed, or has no valid value."""
    for name in values:
        if name in READ_ONLY:
            setting = SETTING_OF.get(name)
            where = "" if setting is None else f"; it is the setting {setting} of the node"
            raise RequestError(
                ErrorCode.invalid_request, f"Cannot update broker config dynamically: {name}{where}"
            )
    check_values("broker", BROKER_CONFIGS, values)


def check_broker_conflicts(layers: tuple[Mapping[str, str], ...]) -> None:
    """RequestError if values that are valid by themselves contradict each other; `layers` strongest first."""
    check_topic_conflicts({}, *layers)
    low, high = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    if broker_value(low, layers) > broker_value(high, layers):
        raise RequestError(ErrorCode.invalid_config, f"{low} must not be greater than {high}.")
