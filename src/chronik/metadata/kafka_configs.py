"""Every config that Apache Kafka 4.1 knows, for those that mean nothing here.

A tool that sets such a config works as it does with Apache Kafka: the value is checked by type, stored and
shown. Its documentation begins with `WITHOUT_EFFECT`, so that nobody takes it for more. What does mean
something is defined by hand in `topic_config`, `broker_config` and `group_config`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Final, NamedTuple

from chronik.metadata.config_def import ConfigDef, ConfigKind
from chronik.model import WITHOUT_EFFECT

__all__ = ["FIXED_IN_KAFKA", "KAFKA_CONFIGS", "without_effect"]

_TABLE: Final = "kafka_configs.tsv"
_NOTHING: Final = "-"
_EMPTY: Final = "''"
_REASON: Final = "taken for tools that set it"
_REASONS: Final = (
    ("remote.", "tiered storage is set up by the node's settings object_store and its relatives"),
    ("group.share.", "there are no share groups"),
    ("share.", "there are no share groups"),
    ("group.streams.", "there are no streams groups"),
    ("streams.", "there are no streams groups"),
    ("controller.quorum.", "the nodes of a cluster are settings"),
    ("unclean.leader.election.enable", "who gives up acknowledged records says so topic by topic"),
    ("compression.", "a batch is compressed anew at the codec's usual level"),
)


class _Row(NamedTuple):
    resource: str
    name: str
    kind: str
    default: str
    low: str
    high: str
    choices: str
    change: str


def _rows() -> Iterator[_Row]:
    lines = resources.files("chronik.metadata").joinpath(_TABLE).read_text(encoding="utf-8").splitlines()
    for line in lines[2:]:
        yield _Row(*line.split("\t"))


def _definition(row: _Row) -> ConfigDef:
    default = None if row.default == _NOTHING else row.default.replace(_EMPTY, "")
    reason = next((why for start, why in _REASONS if row.name.startswith(start)), _REASON)
    return ConfigDef(
        name=row.name,
        kind=ConfigKind[row.kind],
        default=default,
        doc=f"{WITHOUT_EFFECT}: {reason}.",
        low=-math.inf if row.low == _NOTHING else float(row.low),
        high=math.inf if row.high == _NOTHING else float(row.high),
        choices=() if row.choices == _NOTHING else tuple(row.choices.split(",")),
    )


_ROWS: Final = tuple(_rows())

KAFKA_CONFIGS: Final[Mapping[str, Mapping[str, ConfigDef]]] = MappingProxyType(
    {
        resource: MappingProxyType({row.name: _definition(row) for row in _ROWS if row.resource == resource})
        for resource in sorted({row.resource for row in _ROWS})
    }
)
"""The configs by resource (broker, topic, group, client-metrics) and name."""

FIXED_IN_KAFKA: Final = frozenset(
    row.name for row in _ROWS if row.resource == "broker" and row.change == "fixed"
)
"""Broker configs that a running Apache Kafka does not change."""


def without_effect(resource: str) -> Mapping[str, ConfigDef]:
    """All configs of this resource; the caller puts those that mean something here over them."""
    return KAFKA_CONFIGS[resource]
