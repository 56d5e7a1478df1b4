"""What endpoints work with. Built once by the node, complete at construction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chronik.admin.counts import EventCounts, HttpStats
from chronik.admin.guard import Guard
from chronik.admin.http_quotas import HttpQuotas
from chronik.admin.one_at_a_time import OneAtATime
from chronik.cluster.operations import ClusterOperations
from chronik.cluster.status import RaftStatus
from chronik.config import Settings
from chronik.metadata.state import ClusterState
from chronik.metrics import CleanerStats, Histogram
from chronik.model import NodeId
from chronik.query.gateway import QueryGateway
from chronik.server.listener import KafkaListener
from chronik.server.security import Security
from chronik.server.services import Services
from chronik.storage.store import LogStore
from chronik.storage.verifying import Verifier
from chronik.tiering.service import Tiering

if TYPE_CHECKING:
    from chronik.admin.audit_writer import AuditWriter
    from chronik.admin.callers import Callers
    from chronik.admin.loopback import Loopback
    from chronik.admin.peers import HttpPeers
    from chronik.admin.watermark_waits import WatermarkWaits

__all__ = ["AdminContext", "Phase"]

MESSAGE_READS_AT_ONCE: Final = 2


@dataclass(slots=True)
class Phase:
    is_serving: bool = False
    """False while the node waits for a majority of its cluster; it can say how it is, and no more."""
    has_caught_up: bool = False
    """Set once after a start, when every replica here is in sync. A replica that falls behind later does
    not make the node unready: clients of its other partitions would lose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    settings: Settings
    security: Security
    guard: Guard
    callers: Callers
    audit: AuditWriter
    services: Services
    listener: KafkaListener
    store: LogStore
    verifier: Verifier
    cleaner: CleanerStats
    tiering: Tiering | None = None
    """None on a node without an object store."""
    raft_status: Callable[[], RaftStatus]
    load_moves: Mapping[str, int] = field(default_factory=dict)
    """Counts what the load balancer moved, by kind of move."""
    events: EventCounts
    phase: Phase = field(default_factory=Phase)
    http: HttpStats = field(default_factory=HttpStats)
    loopback: Loopback
    """A Kafka client of the cluster, for what any node must answer whoever leads."""
    peers: HttpPeers
    watermark_waits: WatermarkWaits
    loop_time: Callable[[], float]
    started: float
    replication_lag_seconds: Callable[[], Mapping[NodeId, float]] = dict
    """For how long each follower has been behind; empty on a node without followers."""
    watermark_propagation: Mapping[NodeId, Histogram] = field(default_factory=dict)
    """How soon each follower knows the watermarks of partitions led here."""
    strangers_refused: Callable[[], int] = lambda: 0
    """Inter-node connections that were closed because too many were not authenticated yet."""
    refusals: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Logins that failed, and decisions of the authorizer against a client."""
    membership: ClusterOperations | None = None
    """Adds and removes nodes, moves replicas; None on a node that is a cluster by itself."""
    message_reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MESSAGE_READS_AT_ONCE))
    """Taken while records are read and decoded: each reader may hold a batch as large as is decompressed."""
    doctor: OneAtATime = field(default_factory=OneAtATime)
    """Taken while the whole cluster is looked at."""
    planning: OneAtATime = field(default_factory=OneAtATime)
    """Taken while moves of replicas are planned."""
    quotas: HttpQuotas
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
