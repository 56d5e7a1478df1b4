"""The whole state in one piece, to start from instead of the log's beginning."""

from __future__ import annotations

from typing import Final

import msgspec

from chronik.metadata.commands import UnknownCommand
from chronik.metadata.state import ClusterState
from chronik.metadata.values import Broker, Topic
from chronik.model import NodeId

__all__ = ["decode_snapshot", "encode_snapshot"]

FORMAT_VERSION: Final = 1


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    applied_index: int
    cluster_id: str | None
    topics: list[Topic]
    brokers: list[Broker]
    broker_configs: dict[str, dict[str, str]]
    next_producer_id: int
    removed: list[NodeId] = []


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Snapshot)


def encode_snapshot(state: ClusterState) -> bytes:
    """Equal states give equal bytes, whatever the order in which they came about."""
    snapshot = _Snapshot(
        applied_index=state.applied_index,
        cluster_id=state.cluster_id,
        topics=[
            msgspec.structs.replace(topic, configs=dict(sorted(topic.configs.items())))
            for _, topic in sorted(state.topics.items())
        ],
        brokers=[broker for _, broker in sorted(state.brokers.items())],
        broker_configs={
            name: dict(sorted(values.items())) for name, values in sorted(state.broker_configs.items())
        },
        next_producer_id=state.next_producer_id,
        removed=sorted(state.removed),
    )
    return bytes((FORMAT_VERSION,)) + _ENCODER.encode(snapshot)


def decode_snapshot(data: bytes | memoryview) -> ClusterState:
    if not data or data[0] != FORMAT_VERSION:
        found = data[0] if data else "nothing"
        raise UnknownCommand(f"metadata snapshot has format {found}, this version reads {FORMAT_VERSION}")
    try:
        snapshot = _DECODER.decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise UnknownCommand(f"metadata snapshot cannot be read: {error}") from error
    state = ClusterState()
    state.applied_index = snapshot.applied_index
    state.cluster_id = snapshot.cluster_id
    state.topics = {topic.name: topic for topic in snapshot.topics}
    state.topic_names = {topic.topic_id: topic.name for topic in snapshot.topics}
    state.brokers = {broker.broker_id: broker for broker in snapshot.brokers}
    state.broker_configs = dict(snapshot.broker_configs)
    state.next_producer_id = snapshot.next_producer_id
    state.removed = set(snapshot.removed)
    return state
