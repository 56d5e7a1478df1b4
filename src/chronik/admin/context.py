"""What endpoints work with. Built once by the node, complete at construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronik.admin.counts import EventCounts, HttpStats
from chronik.cluster.operations import ClusterOperations
from chronik.cluster.status import RaftStatus
from chronik.config import Settings
from chronik.metadata.state import ClusterState
from chronik.metrics import CleanerStats, Histogram
from chronik.model import NodeId
from chronik.query.gateway import QueryGateway
from chronik.server.listener import KafkaListener
from chronik.server.services import Services
from chronik.storage.store import LogStore

if TYPE_CHECKING:
    from chronik.admin.loopback import Loopback
    from chronik.admin.peers import Peers

__all__ = ["AdminContext", "Phase"]


@dataclass(slots=True)
class Phase:
    is_serving: bool = False
    """False while the node waits for a majority of its cluster; it can say how it is, and no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    settings: Settings
    services: Services
    listener: KafkaListener
    store: LogStore
    cleaner: CleanerStats
    raft_status: Callable[[], RaftStatus]
    events: EventCounts
    phase: Phase = field(default_factory=Phase)
    http: HttpStats = field(default_factory=HttpStats)
    loopback: Loopback
    """A Kafka client of the cluster, for what any node must answer whoever leads."""
    peers: Peers
    loop_time: Callable[[], float]
    started: float
    replication_lag_seconds: Callable[[], Mapping[NodeId, float]] = dict
    """For how long each follower has been behind; empty on a node without followers."""
    watermark_propagation: Mapping[NodeId, Histogram] = field(default_factory=dict)
    """How soon each follower knows the watermarks of partitions led here."""
    membership: ClusterOperations | None = None
    """Adds and removes nodes, moves replicas; None on a node that is a cluster by itself."""
    queries: QueryGateway
    """Search and SQL, in a process of their own."""

    @property
    def state(self) -> ClusterState:
        return self.services.state

    @property
    def node_id(self) -> int:
        return self.settings.node_id

    @property
    def up_seconds(self) -> float:
        return self.loop_time() - self.started
