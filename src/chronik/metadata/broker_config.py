"""Broker configs by Kafka's names: defaults for topics, which can be changed live, and facts of the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from chronik.metadata.config_def import INT_MAX, ConfigDef, ConfigKind
from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.model import ErrorCode, RequestError

__all__ = ["BROKER_CONFIGS", "READ_ONLY", "check_broker_configs"]

_UNITS: Final = {60_000: "minutes", 3_600_000: "hours"}


def _topic_defaults() -> Iterator[ConfigDef]:
    for topic in TOPIC_CONFIGS.values():
        doc = f"Default of the topic config {topic.name}. {topic.doc}"
        for name, factor in topic.server_names:
            if factor == 1:
                yield replace(topic, name=name, server_names=(), doc=doc)
            else:
                yield ConfigDef(
                    name=name,
                    kind=ConfigKind.INT,
                    default="",
                    doc=f"The same in {_UNITS[factor]}, where the value in milliseconds is not set. {doc}",
                    low=topic.low,
                    high=INT_MAX,
                )


def _fact(name: str, kind: ConfigKind, doc: str) -> ConfigDef:
    return ConfigDef(name=name, kind=kind, default="", doc=doc)


_FACTS: Final = (
    _fact("advertised.listeners", ConfigKind.STRING, "Where clients are told to connect to."),
    _fact(
        "auto.create.topics.enable", ConfigKind.BOOLEAN, "Whether a topic is created when it is first named."
    ),
    _fact("broker.id", ConfigKind.INT, "The id of this broker."),
    _fact("broker.rack", ConfigKind.STRING, "Where this broker stands."),
    _fact("default.replication.factor", ConfigKind.INT, "Replicas of a topic that does not say how many."),
    _fact("listeners", ConfigKind.STRING, "Where this broker listens."),
    _fact("log.dirs", ConfigKind.STRING, "Directory of this broker's data."),
    _fact("max.connections", ConfigKind.INT, "Connections of clients at once."),
    _fact("node.id", ConfigKind.INT, "The id of this node."),
    _fact("num.partitions", ConfigKind.INT, "Partitions of a topic that does not say how many."),
    _fact("socket.request.max.bytes", ConfigKind.INT, "Longest request that is read."),
)

READ_ONLY: Final = frozenset(fact.name for fact in _FACTS)
"""Known at start and not changed by AlterConfigs."""

BROKER_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    {one.name: one for one in sorted((*_topic_defaults(), *_FACTS), key=lambda one: one.name)}
)


def check_broker_configs(values: Mapping[str, str | None]) -> None:
    """RequestError that names the first key that is unknown, fixed, or has no valid value."""
    for name, text in values.items():
        definition = BROKER_CONFIGS.get(name)
        if definition is None:
            raise RequestError(ErrorCode.invalid_config, f"Unknown broker config name: {name}")
        if name in READ_ONLY:
            raise RequestError(ErrorCode.invalid_request, f"Cannot update broker config dynamically: {name}")
        if text is None:
            raise RequestError(
                ErrorCode.invalid_config, f"Null value not supported for broker config: {name}"
            )
        try:
            definition.parse(text)
        except ValueError as error:
            raise RequestError(
                ErrorCode.invalid_config, f"Invalid value {text} for configuration {name}: {error}"
            ) from None
