"""The cluster as a whole, and what each node says about itself."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import msgspec

from chronik import __version__
from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.scrape import is_ready
from chronik.admin.visible import visible_topics
from chronik.cluster.status import RaftStatus
from chronik.metrics import SECONDS, Histogram
from chronik.model import NO_LEADER, NodeId, Unavailable
from chronik.security.acls import Operation, ResourceType
from chronik.server.gate import asks, on_cluster
from chronik.wire.api import ApiKey

ASK_SECONDS = 1.0
ASKED_OF_NODES = "/admin/node"
"""Nodes ask each other for their status under its former name, which those of the release before know too."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    is_alive: bool
    """Registered and not fenced, according to the metadata."""
    is_controller: bool
    is_this: bool
    rack: str | None
    endpoints: dict[str, str]
    leader_count: int
    replica_count: int
    isr_count: int


class Troubled(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    leader: NodeId
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str | None
    node_id: NodeId
    """The node that answers."""
    controller_id: NodeId
    term: int
    applied_index: int
    topic_count: int
    partition_count: int
    nodes: list[NodeView]
    under_replicated: list[Troubled]
    """Partitions whose ISR is not complete; at most 1,000 are listed."""
    under_replicated_count: int
    offline_count: int


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Counts per bucket since the node started. Subtract two answers to get what happened between them."""

    bounds_ms: tuple[float, ...]
    """Upper bound of each bucket except the last, which is unbounded."""
    produce: list[int]
    fetch: list[int]
    wal: list[int]


class QueryProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The search process or the SQL process. Each is started when it is first needed."""

    kind: str
    is_up: bool
    restarts: int
    confinement: dict[str, str]
    """Which confinements hold for the running process, and which this kernel lacks."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows about itself. Counters only grow: rates are differences of two answers."""

    node_id: NodeId
    version: str
    is_ready: bool
    up_seconds: float
    received_bytes: int
    sent_bytes: int
    connections: int
    request_count: int
    latency: Latency
    appended_records: int
    """Sum of the end offsets of the partitions led here."""
    wal_rounds: int
    wal_queue_depth: int
    held_back: int
    resident_bytes: int
    has_query: bool
    """Search and SQL are installed on this node."""
    query_processes: list[QueryProcessStatus]
    raft: RaftStatus


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    reachable: bool
    problem: str | None = None
    status: Any = None
    """A NodeStatus; null when the node did not answer."""


class NodeReports(msgspec.Struct, frozen=True):
    asked_by: NodeId
    nodes: list[NodeReport]


@endpoint(
    "GET",
    "/admin/cluster",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    summary="Nodes, leaders, what is under-replicated",
    answer=ClusterView,
)
async def cluster_status(call: HttpCall) -> ClusterView:
    """Counts are those of topics that the caller may DESCRIBE."""
    context = call.context
    state = context.state
    raft = context.raft_status()
    led: dict[NodeId, int] = {}
    replicas: dict[NodeId, int] = {}
    in_sync: dict[NodeId, int] = {}
    short: list[Troubled] = []
    count = offline = 0
    visible = visible_topics(call)
    for name in visible:
        topic = state.topics[name]
        for one in topic.partitions:
            count += 1
            led[one.leader] = led.get(one.leader, 0) + 1
            for replica in one.replicas:
                replicas[replica] = replicas.get(replica, 0) + 1
            for member in one.isr:
                in_sync[member] = in_sync.get(member, 0) + 1
            offline += not state.is_alive(one.leader)
            if len(one.isr) < len(one.replicas):
                short.append(
                    Troubled(
                        topic=topic.name,
                        partition=one.partition,
                        leader=one.leader,
                        replicas=one.replicas,
                        isr=one.isr,
                    )
                )
    nodes = [
        NodeView(
            node_id=broker.broker_id,
            is_alive=not broker.fenced,
            is_controller=broker.broker_id == raft.leader_id,
            is_this=broker.broker_id == context.node_id,
            rack=broker.rack,
            endpoints={name: f"{at.host}:{at.port}" for name, at in broker.endpoints.items()},
            leader_count=led.get(broker.broker_id, 0),
            replica_count=replicas.get(broker.broker_id, 0),
            isr_count=in_sync.get(broker.broker_id, 0),
        )
        for _, broker in sorted(state.brokers.items())
    ]
    return ClusterView(
        cluster_id=state.cluster_id,
        node_id=context.node_id,
        controller_id=raft.leader_id,
        term=raft.term,
        applied_index=state.applied_index,
        topic_count=len(visible),
        partition_count=count,
        nodes=nodes,
        under_replicated=short[:1000],
        under_replicated_count=len(short),
        offline_count=offline,
    )


@endpoint(
    "GET",
    "/admin/status",
    needs=on_cluster(Operation.DESCRIBE),
    summary="This node's own figures",
    answer=NodeStatus,
    always=True,
)
async def status(call: HttpCall) -> NodeStatus:
    """It also says whether search and SQL are up, what confines them, and where its metadata log stands."""
    return own_status(call.context)


@endpoint(
    "GET",
    ASKED_OF_NODES,
    needs=on_cluster(Operation.DESCRIBE),
    summary="The same",
    answer=NodeStatus,
    always=True,
)
async def node_status(call: HttpCall) -> NodeStatus:
    """The former name of `/admin/status`."""
    return own_status(call.context)


@endpoint(
    "GET",
    "/admin/nodes",
    needs=on_cluster(Operation.DESCRIBE),
    summary="Every node's figures, asked now",
    answer=NodeReports,
)
async def nodes_status(call: HttpCall) -> NodeReports:
    """Asks all registered nodes at once; one that does not answer within a second is shown as such."""
    context = call.context
    others = [node_id for node_id in sorted(context.state.brokers) if node_id != context.node_id]
    reports = await asyncio.gather(*(_ask(context, node_id, call.authorization) for node_id in others))
    own = NodeReport(node_id=context.node_id, reachable=True, status=own_status(context))
    return NodeReports(context.node_id, sorted([own, *reports], key=lambda one: one.node_id))


def own_status(context: AdminContext) -> NodeStatus:
    stats, wal = context.listener.stats, context.store.wal
    latency = Latency(
        bounds_ms=tuple(bound * 1000 for bound in SECONDS),
        produce=_counts(stats.requests.get(ApiKey.PRODUCE)),
        fetch=_counts(stats.requests.get(ApiKey.FETCH)),
        wal=_counts(wal.stats.round_seconds),
    )
    return NodeStatus(
        node_id=context.node_id,
        version=__version__,
        is_ready=is_ready(context),
        up_seconds=round(context.up_seconds, 3),
        received_bytes=stats.received_bytes,
        sent_bytes=stats.sent_bytes,
        connections=context.listener.connection_count,
        request_count=sum(found.count for found in stats.requests.values()),
        latency=latency,
        appended_records=sum(p.log_end_offset for p in context.services.replicas.all() if p.is_leader),
        wal_rounds=wal.stats.rounds,
        wal_queue_depth=wal.depth,
        held_back=stats.held_back,
        resident_bytes=resident_bytes(),
        has_query=context.queries.is_installed,
        query_processes=[
            QueryProcessStatus(
                kind=process.kind,
                is_up=process.is_up,
                restarts=process.restarts,
                confinement=dict(process.confinement),
            )
            for process in context.queries.processes
        ],
        raft=context.raft_status(),
    )


def _counts(histogram: Histogram | None) -> list[int]:
    return [] if histogram is None else list(histogram.counts)


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def _ask(context: AdminContext, node_id: NodeId, authorization: str | None) -> NodeReport:
    if node_id == NO_LEADER or not context.state.is_alive(node_id):
        return NodeReport(node_id=node_id, reachable=False, problem="The cluster has fenced this node.")
    try:
        status = await context.peers.ask(
            node_id, "GET", ASKED_OF_NODES, timeout_s=ASK_SECONDS, authorization=authorization
        )
    except (Unavailable, HttpError) as error:
        return NodeReport(node_id=node_id, reachable=False, problem=str(error))
    return NodeReport(node_id=node_id, reachable=True, status=status)
