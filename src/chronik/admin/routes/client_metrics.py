"""What clients tell about themselves (KIP-714): who is asked for what, and what was pushed last."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import BY_NODE
from chronik.metadata.client_metrics import MetricsSubscription
from chronik.metadata.commands import CLIENT_METRICS_RESOURCE
from chronik.model import Int32, NodeId, Unavailable
from chronik.security.acls import Operation
from chronik.server.config_changes import check_resource, set_configs
from chronik.server.gate import on_cluster

ASK_SECONDS: Final = 3.0


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    metrics: tuple[str, ...]
    """By the start of their names; * means all."""
    interval_ms: int
    match: str
    """Which clients; empty: all."""


class MetricValue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    unit: str
    kind: str
    is_delta: bool
    """The value is what was added since the push before."""
    attributes: tuple[tuple[str, str], ...]
    time_ms: int
    value: float
    """Of a histogram the sum."""
    count: int | None


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    instance_id: str
    node_id: NodeId
    """Where it pushed to last."""
    client_id: str
    software: str
    address: str
    pushed_ms: int
    interval_ms: int
    size_bytes: int
    is_readable: bool
    values: tuple[MetricValue, ...]


class NodeClients(msgspec.Struct, frozen=True, kw_only=True):
    clients: list[ClientView]
    known: int
    """Clients that asked or pushed, with or without metrics."""


class ClientMetrics(msgspec.Struct, frozen=True, kw_only=True):
    subscriptions: list[SubscriptionView]
    clients: list[ClientView]
    """The newest push first."""
    known: int
    silent_nodes: dict[str, str]
    """Nodes that could not be asked, and why."""


class SubscriptionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metrics: str
    """Separated by commas."""
    interval_ms: Int32 = 300_000
    match: str = ""


@endpoint(
    "GET",
    "/admin/client-metrics",
    needs=on_cluster(Operation.DESCRIBE_CONFIGS),
    summary="Metrics that clients pushed last, and who is asked for them",
    answer=ClientMetrics,
)
async def client_metrics(call: HttpCall) -> ClientMetrics:
    """Each node remembers the last push of some clients, in memory; all nodes are asked."""
    context = call.context
    subscriptions = [
        _subscription(name, configs) for name, configs in sorted(context.state.client_metrics.items())
    ]
    nodes = sorted(context.state.brokers)
    answers = await asyncio.gather(*(_ask(call, node_id) for node_id in nodes))
    told = [one for one in answers if isinstance(one, NodeClients)]
    latest: dict[str, ClientView] = {}
    for client in sorted((one for answer in told for one in answer.clients), key=lambda one: one.pushed_ms):
        latest[client.instance_id] = client  # it may have pushed to several nodes
    return ClientMetrics(
        subscriptions=subscriptions,
        clients=sorted(latest.values(), key=lambda one: -one.pushed_ms),
        known=sum(one.known for one in told),
        silent_nodes={
            str(node_id): one for node_id, one in zip(nodes, answers, strict=True) if isinstance(one, str)
        },
    )


@endpoint(
    "POST",
    "/admin/client-metrics/{name}",
    needs=on_cluster(Operation.ALTER_CONFIGS),
    summary="Ask clients for metrics, or change what they are asked for",
    body=SubscriptionBody,
    answer=SubscriptionView,
    access=HttpAccess.CHANGE,
)
async def subscribe_metrics(call: HttpCall) -> SubscriptionView:
    wanted: SubscriptionBody = call.body
    name = call.path["name"]
    await _set(
        call,
        {"metrics": wanted.metrics, "interval.ms": str(wanted.interval_ms), "match": wanted.match},
    )
    return _subscription(name, call.context.state.client_metrics.get(name, {}))


@endpoint(
    "DELETE",
    "/admin/client-metrics/{name}",
    needs=on_cluster(Operation.ALTER_CONFIGS),
    summary="Ask clients no longer",
    access=HttpAccess.CHANGE,
)
async def unsubscribe_metrics(call: HttpCall) -> dict[str, str]:
    name = call.path["name"]
    if name not in call.context.state.client_metrics:
        raise HttpError(404, "not_found", f"There is no subscription {name[:100]!r}.")
    await _set(call, dict.fromkeys(("metrics", "interval.ms", "match")))
    return {"name": name}


@endpoint(
    "GET",
    "/_node/client-metrics",
    needs=BY_NODE,
    summary="What clients pushed to this node; nodes ask each other",
    answer=NodeClients,
    access=HttpAccess.STATUS,
)
async def client_metrics_node(call: HttpCall) -> NodeClients:
    return _here(call.context)


async def _set(call: HttpCall, values: dict[str, str | None]) -> None:
    services = call.context.services
    check_resource(services, CLIENT_METRICS_RESOURCE, call.path["name"])
    command = set_configs(services, CLIENT_METRICS_RESOURCE, call.path["name"], values, replace=False)
    await services.metadata.submit(command)


async def _ask(call: HttpCall, node_id: NodeId) -> NodeClients | str:
    if node_id == call.context.node_id:
        return _here(call.context)
    try:
        answer = await call.context.peers.ask(
            node_id, "GET", "/_node/client-metrics", timeout_s=ASK_SECONDS, authorization=call.authorization
        )
    except (Unavailable, HttpError) as error:
        return str(error)
    return msgspec.convert(answer, NodeClients)


def _subscription(name: str, configs: dict[str, str]) -> SubscriptionView:
    parsed = MetricsSubscription.parse(name, configs)
    return SubscriptionView(
        name=name,
        metrics=parsed.metrics,
        interval_ms=parsed.interval_ms,
        match=configs.get("match", ""),
    )


def _here(context: AdminContext) -> NodeClients:
    telemetry = context.services.telemetry
    clients = [
        ClientView(
            instance_id=str(one.instance_id),
            node_id=context.node_id,
            client_id=one.client["client_id"],
            software=f"{one.client['client_software_name']} {one.client['client_software_version']}".strip(),
            address=one.client["client_source_address"],
            pushed_ms=one.pushed_ms,
            interval_ms=one.interval_ms,
            size_bytes=one.size_bytes,
            is_readable=one.points is not None,
            values=tuple(
                MetricValue(
                    name=point.name,
                    unit=point.unit,
                    kind=point.kind,
                    is_delta=point.is_delta,
                    attributes=point.attributes,
                    time_ms=point.time_ms,
                    value=point.value,
                    count=point.count,
                )
                for point in one.points or ()
            ),
        )
        for one in telemetry.recent()
    ]
    return NodeClients(clients=clients, known=len(telemetry))
