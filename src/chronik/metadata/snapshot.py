"""The whole state in one piece, to start from instead of the log's beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from chronik.metadata.commands import UnknownCommand
from chronik.metadata.levels import LEVEL_FIRST, refuse_level
from chronik.metadata.security import SecuritySnapshot, SecurityState
from chronik.metadata.sizes import measure_configs
from chronik.metadata.state import ClusterState
from chronik.metadata.values import Broker, Topic
from chronik.model import NodeId, refuse_newer

__all__ = ["decode_snapshot", "encode_snapshot"]

FORMAT_VERSION: Final = 1


class _StateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state after one entry of the metadata log."""

    applied_index: int
    """Index of that entry."""
    cluster_id: str | None
    topics: list[Topic]
    """Sorted by name."""
    brokers: list[Broker]
    """Sorted by id."""
    broker_configs: dict[str, dict[str, str]]
    """Configs by broker id; the empty string stands for the default of all brokers."""
    next_producer_id: int
    """The first producer id that no broker has taken yet."""
    removed: list[NodeId] = []
    """Nodes that were removed and may not come back by themselves."""
    group_configs: dict[str, dict[str, str]] = {}
    """Configs by group."""
    client_metrics: dict[str, dict[str, str]] = {}
    """Configs by subscription (KIP-714)."""
    level: int = LEVEL_FIRST
    """The cluster's level: says which commands all its nodes understand."""
    security: SecuritySnapshot = SecuritySnapshot()
    node_keys: dict[NodeId, bytes] = {}
    """The public Ed25519 key of each node."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_StateSnapshot)


def encode_snapshot(state: ClusterState) -> bytes:
    """Equal states give equal bytes, whatever the order in which they came about."""
    snapshot = _StateSnapshot(
        applied_index=state.applied_index,
        cluster_id=state.cluster_id,
        topics=[
            msgspec.structs.replace(topic, configs=dict(sorted(topic.configs.items())))
            for _, topic in sorted(state.topics.items())
        ],
        brokers=[broker for _, broker in sorted(state.brokers.items())],
        broker_configs=_sorted(state.broker_configs),
        next_producer_id=state.next_producer_id,
        removed=sorted(state.removed),
        group_configs=_sorted(state.group_configs),
        client_metrics=_sorted(state.client_metrics),
        level=state.level,
        security=state.security.snapshot(),
        node_keys=dict(sorted(state.node_keys.items())),
    )
    return bytes((FORMAT_VERSION,)) + _ENCODER.encode(snapshot)


def _sorted(table: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {name: dict(sorted(values.items())) for name, values in sorted(table.items())}


def decode_snapshot(data: bytes | memoryview) -> ClusterState:
    if not data:
        raise UnknownCommand("the metadata snapshot is empty")
    refuse_newer("the metadata snapshot", data[0], FORMAT_VERSION)
    try:
        snapshot = _DECODER.decode(memoryview(data)[1:])
    except ValueError as error:
        raise UnknownCommand(f"metadata snapshot cannot be read: {error}") from error
    refuse_level(snapshot.level)
    state = ClusterState()
    state.applied_index = snapshot.applied_index
    state.cluster_id = snapshot.cluster_id
    state.level = snapshot.level
    state.topics = {topic.name: topic for topic in snapshot.topics}
    state.topic_names = {topic.topic_id: topic.name for topic in snapshot.topics}
    state.brokers = {broker.broker_id: broker for broker in snapshot.brokers}
    state.broker_configs = dict(snapshot.broker_configs)
    state.group_configs = dict(snapshot.group_configs)
    state.client_metrics = dict(snapshot.client_metrics)
    state.next_producer_id = snapshot.next_producer_id
    state.removed = set(snapshot.removed)
    state.security = SecurityState.restore(snapshot.security)
    state.node_keys = dict(snapshot.node_keys)
    state.config_bytes = measure_configs(state)
    return state
