"""Groups and transactions of one node, wired to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

from chronik.config import Settings
from chronik.groups.coordinator import GroupCoordinator
from chronik.groups.shard import CoordinatorConfig
from chronik.metadata.store import MetadataStore
from chronik.model import TopicPartition
from chronik.replication.manager import ReplicaManager
from chronik.server.peers import BrokerPeers
from chronik.server.services import broker_configs
from chronik.transactions.coordinator import TransactionConfig, TransactionCoordinator
from chronik.transactions.gate import TransactionGate
from chronik.transactions.markers import Marker, MarkerWriter
from chronik.transactions.producer_ids import ProducerIds

__all__ = ["Coordination"]


C = TypeVar("C")


class _Latest(Generic[C]):
    """Configs as they are now; worked out anew only when the metadata moved."""

    def __init__(
        self,
        metadata: MetadataStore,
        settings: Settings,
        resolve: Callable[[tuple[Mapping[str, str], ...]], C],
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._resolve = resolve
        self._index = metadata.state.applied_index
        self._config = resolve(broker_configs(metadata.state, settings))

    def __call__(self) -> C:
        state = self._metadata.state
        if self._index != state.applied_index:
            self._index = state.applied_index
            self._config = self._resolve(broker_configs(state, self._settings))
        return self._config


class Coordination:
    """Both coordinators; a marker that one writes ends what the other holds open."""

    def __init__(
        self,
        *,
        settings: Settings,
        metadata: MetadataStore,
        replicas: ReplicaManager,
        now_ms: Callable[[], int],
        new_uuid: Callable[[], UUID],
    ) -> None:
        node_id = settings.node_id
        group_config = partial(CoordinatorConfig.resolve, topic_partitions=settings.offsets_topic_partitions)
        transaction_config = partial(
            TransactionConfig.resolve, topic_partitions=settings.transactions_topic_partitions
        )
        self.groups = GroupCoordinator(
            metadata=metadata,
            replicas=replicas,
            config=_Latest(metadata, settings, group_config),
            now_ms=now_ms,
            new_uuid=new_uuid,
        )
        self._peers = BrokerPeers(metadata)
        markers = MarkerWriter(
            node_id=node_id,
            metadata=metadata,
            replicas=replicas,
            peers=self._peers,
            now_ms=now_ms,
            on_marker=self._on_marker,
        )
        self.transactions = TransactionCoordinator(
            metadata=metadata,
            replicas=replicas,
            markers=markers,
            producer_ids=ProducerIds(metadata, node_id),
            config=_Latest(metadata, settings, transaction_config),
            now_ms=now_ms,
        )
        self.gate = TransactionGate(
            node_id=node_id, metadata=metadata, coordinator=self.transactions, peers=self._peers
        )

    def _on_marker(self, tp: TopicPartition, marker: Marker) -> None:
        self.groups.end_transaction(tp, marker.producer_id, commit=marker.is_commit)

    def start(self) -> None:
        """Load what this node leads, now and whenever that changes."""
        self.groups.start()
        self.transactions.start()

    async def stop(self) -> None:
        await self.groups.stop()
        await self.transactions.stop()
        await self._peers.close()
