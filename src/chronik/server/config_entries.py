"""Config values as DescribeConfigs shows them: where each comes from, and what it would be otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, TypeAlias

from chronik.metadata.broker_config import BROKER_CONFIGS, READ_ONLY
from chronik.metadata.config_def import ConfigDef
from chronik.metadata.topic_config import scaled
from chronik.server.services import Services

__all__ = ["ConfigSource", "broker_entries", "default_broker_entries", "layered_entries"]

Entry: TypeAlias = dict[str, Any]


class ConfigSource(IntEnum):
    """Kafka's numbers; the first five strongest first."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


_BROKER_SOURCES = (ConfigSource.BROKER, ConfigSource.ALL_BROKERS, ConfigSource.STATIC)


def layered_entries(
    services: Services,
    overrides: Mapping[str, str],
    definitions: Mapping[str, ConfigDef],
    source_of_overrides: ConfigSource = ConfigSource.TOPIC,
) -> list[Entry]:
    """Configs of a topic, a group or a subscription: its own over the broker's over the defaults."""
    layers = services.broker_configs()
    entries = []
    for definition in definitions.values():
        # (value in the topic's unit, name, value as set, source)
        chain: list[tuple[str | None, str, str | None, ConfigSource]] = []
        if definition.name in overrides:
            value = overrides[definition.name]
            chain.append((value, definition.name, value, source_of_overrides))
        for source, layer in zip(_BROKER_SOURCES, layers, strict=True):
            for name, factor in definition.server_names:
                if name in layer:
                    value = layer[name] if factor == 1 else str(scaled(layer[name], factor))
                    chain.append((value, name, layer[name], source))
        server_name = definition.server_names[0][0] if definition.server_names else definition.name
        chain.append((definition.default, server_name, definition.default, ConfigSource.DEFAULT))
        synonyms = [{"name": name, "value": raw, "source": source} for _, name, raw, source in chain]
        entries.append(_entry(definition, chain[0][0], chain[0][3], synonyms))
    return entries


def broker_entries(services: Services, settings: Mapping[str, str]) -> list[Entry]:
    """This broker's configs; `settings` are the values that its settings give."""
    layers = services.broker_configs()
    entries = []
    for name, definition in BROKER_CONFIGS.items():
        chain: list[tuple[str | None, ConfigSource]] = [
            (layer[name], source)
            for source, layer in zip(_BROKER_SOURCES, layers, strict=True)
            if name in layer
        ]
        if name in READ_ONLY:
            chain = []  # whatever a node that did not refuse it has stored
        if name in settings:
            chain.append((settings[name], ConfigSource.STATIC))
        if not chain:
            chain = [(None, ConfigSource.DEFAULT)]
        if definition.default is not None:
            chain = [link for link in chain if link[0] is not None]
            chain.append((definition.default, ConfigSource.DEFAULT))
        # As in Kafka, a default of null is no synonym.
        synonyms = [
            {"name": name, "value": value, "source": source} for value, source in chain if value is not None
        ]
        entries.append(_entry(definition, *chain[0], synonyms))
    return entries


def default_broker_entries(values: Mapping[str, str]) -> Iterable[Entry]:
    """What is set for all brokers, and nothing else."""
    for name, value in sorted(values.items()):
        definition = BROKER_CONFIGS.get(name)
        if definition is not None:
            synonyms = [{"name": name, "value": value, "source": ConfigSource.ALL_BROKERS}]
            yield _entry(definition, value, ConfigSource.ALL_BROKERS, synonyms)


def _entry(
    definition: ConfigDef, value: str | None, source: ConfigSource, synonyms: list[dict[str, Any]]
) -> Entry:
    if definition.is_sensitive:
        value = None
        synonyms = [{**synonym, "value": None} for synonym in synonyms]
    return {
        "name": definition.name,
        "value": value,
        "read_only": definition.name in READ_ONLY,
        "config_source": source,
        "is_sensitive": definition.is_sensitive,
        "synonyms": synonyms,
        "config_type": definition.kind,
        "documentation": definition.doc,
    }
