"""What handlers work with. Built once by the node, complete at construction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from chronik.config import Settings
from chronik.metadata.broker_config import BROKER_CONFIGS
from chronik.metadata.commands import BROKER_RESOURCE
from chronik.metadata.state import ClusterState
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_config import TopicConfig
from chronik.model import Limits, NodeId, TopicPartition

__all__ = ["FeatureRange", "PartitionView", "Replicas", "Services", "static_broker_configs"]


class PartitionView(Protocol):
    """What the admin handlers ask of a partition on this node."""

    @property
    def tp(self) -> TopicPartition: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """Offset, timestamp and leader epoch of the first record that is at least as late."""
        ...

    async def offset_of_max_timestamp(self) -> tuple[int, int, int] | None: ...

    async def delete_records(self, offset: int) -> int:
        """Move the start of the log up; returns the low watermark."""
        ...


class Replicas(Protocol):
    def get(self, tp: TopicPartition) -> PartitionView | None: ...
    def leader(self, tp: TopicPartition) -> PartitionView: ...
    def all(self) -> Iterable[PartitionView]: ...


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """A feature that ApiVersions tells clients about (KIP-584)."""

    low: int
    high: int
    level: int


def _unknown_usage() -> tuple[int, int]:
    return -1, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    settings: Settings
    metadata: MetadataStore
    replicas: Replicas
    limits: Limits = field(default_factory=Limits)
    new_uuid: Callable[[], UUID]
    controller_id: Callable[[], NodeId]
    """Where clients are told that the controller is; every node forwards, so any live node will do."""
    disk_usage: Callable[[], tuple[int, int]] = _unknown_usage
    """Bytes of the data directory's file system: all, and still usable."""
    features: Mapping[str, FeatureRange] = field(default_factory=dict)
    groups: Any = None
    transactions: Any = None

    @property
    def state(self) -> ClusterState:
        return self.metadata.state

    def topic_config(self, topic: str) -> TopicConfig:
        """The values in force for a topic on this node."""
        found = self.state.topics.get(topic)
        return TopicConfig.resolve(found.configs if found else {}, *self.broker_configs())

    def broker_configs(self) -> tuple[Mapping[str, str], ...]:
        """This broker's configs, strongest first: for this broker, for all brokers, from the settings."""
        state = self.state
        return (
            state.configs(BROKER_RESOURCE, str(self.settings.node_id)),
            state.configs(BROKER_RESOURCE, ""),
            static_broker_configs(self.settings),
        )


def static_broker_configs(settings: Settings) -> Mapping[str, str]:
    """Settings that have a Kafka name, under that name, where they differ from its default."""
    named = {
        "min.insync.replicas": str(settings.min_insync_replicas),
        "log.segment.bytes": str(settings.segment_bytes),
        "log.retention.ms": str(settings.retention_ms),
    }
    return {name: value for name, value in named.items() if value != BROKER_CONFIGS[name].default}
