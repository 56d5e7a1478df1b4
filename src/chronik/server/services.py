"""What handlers work with. Built once by the node, complete at construction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from chronik.client_state import ClientState
from chronik.cluster.presence import Presence
from chronik.cluster.status import RaftStatus
from chronik.config import Settings
from chronik.groups.coordinator import GroupCoordinator
from chronik.metadata.broker_config import BROKER_CONFIGS
from chronik.metadata.commands import BROKER_RESOURCE
from chronik.metadata.levels import FEATURE, LEVEL_FIRST, LEVEL_LAST
from chronik.metadata.state import ClusterState
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_config import TopicConfig
from chronik.model import Limits, NodeId
from chronik.registry.coordinator import SchemaRegistry
from chronik.replication.manager import ReplicaManager
from chronik.security.quotas import Quotas
from chronik.server.audit import AuditTrail
from chronik.server.fetch_sessions import FetchSessions
from chronik.server.telemetry import Telemetry
from chronik.server.topic_answers import TopicAnswers
from chronik.tasks import Tasks
from chronik.transactions.coordinator import TransactionCoordinator
from chronik.transactions.verification import TransactionVerifier

__all__ = ["FeatureRange", "Services", "static_broker_configs"]


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """A feature that ApiVersions tells clients about (KIP-584)."""

    low: int
    high: int
    level: int


def _unknown_usage() -> tuple[int, int]:
    return -1, -1


def _no_audit() -> AuditTrail:
    return AuditTrail(node_id=0, now_ms=lambda: 0, is_on=False, with_changes=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    settings: Settings
    metadata: MetadataStore
    replicas: ReplicaManager
    limits: Limits = field(default_factory=Limits)
    new_uuid: Callable[[], UUID]
    quorum: Callable[[], Awaitable[RaftStatus]]
    """How the metadata log stands, as its leader sees it."""
    controller_id: Callable[[], NodeId]
    """The node that answers name as the controller. Every node forwards, so any live node will do."""
    presence: Presence
    client_state: ClientState = field(default_factory=ClientState)
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    topic_answers: TopicAnswers = field(default_factory=TopicAnswers)
    telemetry: Telemetry = field(default_factory=Telemetry)
    quotas: Quotas = field(default_factory=Quotas)
    audit: AuditTrail = field(default_factory=_no_audit)
    now_ms: Callable[[], int]
    """Wall clock, for timestamps in records."""
    disk_usage: Callable[[], tuple[int, int]] = _unknown_usage
    """Bytes of the data directory's file system: all, and still usable."""
    fixed_features: Mapping[str, FeatureRange] = field(default_factory=dict)
    """Features that have one level, whatever the cluster's is."""
    levels_of: Callable[[NodeId], Awaitable[tuple[int, int] | None]]
    """The levels of a cluster that a node can work at; None if it cannot be asked."""
    tasks: Tasks = field(default_factory=lambda: Tasks("requests"))
    """Requests that go on in a task of their own; each sends its own answer."""
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    transaction_verifier: TransactionVerifier
    schemas: SchemaRegistry

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.spawn(work, "the rest of a request")

    @property
    def state(self) -> ClusterState:
        return self.metadata.state

    @property
    def features(self) -> Mapping[str, FeatureRange]:
        """All features by name, with the levels that this node supports and that the cluster is at."""
        own = FeatureRange(low=LEVEL_FIRST, high=LEVEL_LAST, level=self.state.level)
        return {**self.fixed_features, FEATURE: own}

    def topic_config(self, topic: str) -> TopicConfig:
        """The values in force for a topic on this node."""
        found = self.state.topics.get(topic)
        return TopicConfig.resolve(found.configs if found else {}, *self.broker_configs())

    def broker_configs(self) -> tuple[Mapping[str, str], ...]:
        """This broker's configs, strongest first: for this broker, for all brokers, from the settings."""
        return broker_configs(self.state, self.settings)

    async def close(self) -> None:
        """End what requests still have under way."""
        await self.tasks.close()


def broker_configs(state: ClusterState, settings: Settings) -> tuple[Mapping[str, str], ...]:
    """A broker's configs, strongest first: for this broker, for all brokers, from the settings."""
    return (
        state.configs(BROKER_RESOURCE, str(settings.node_id)),
        state.configs(BROKER_RESOURCE, ""),
        static_broker_configs(settings),
    )


def static_broker_configs(settings: Settings) -> Mapping[str, str]:
    """Settings that have a Kafka name, under that name, where they differ from its default."""
    named = {
        "min.insync.replicas": str(settings.min_insync_replicas),
        "log.segment.bytes": str(settings.segment_bytes),
        "log.retention.ms": str(settings.retention_ms),
        "log.retention.check.interval.ms": str(settings.retention_check_interval_ms),
        "log.cleaner.backoff.ms": str(settings.cleaner_backoff_ms),
        "group.initial.rebalance.delay.ms": str(settings.group_initial_rebalance_delay_ms),
        "log.cleaner.io.max.bytes.per.second": str(settings.cleaner_bytes_per_second),
    }
    return {name: value for name, value in named.items() if value != BROKER_CONFIGS[name].default}
