"""What clients tell about themselves (KIP-714): who is asked for what, and what was pushed last."""

from __future__ import annotations

import msgspec

from chronik.admin.client_pushes import (
    ClientView,
    NodeClients,
    PushesQuery,
    gather,
    pushes_here,
)
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import BY_NODE
from chronik.metadata.client_metrics import MetricsSubscription
from chronik.metadata.commands import CLIENT_METRICS_RESOURCE
from chronik.model import Int32
from chronik.security.acls import Operation
from chronik.server.config_changes import check_resource, set_configs
from chronik.server.gate import on_cluster


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    metrics: tuple[str, ...]
    """Beginnings of the names of the wanted metrics; * means all."""
    interval_ms: int
    match: str
    """Which clients; empty: all."""


class ClientMetrics(msgspec.Struct, frozen=True, kw_only=True):
    subscriptions: list[SubscriptionView]
    clients: list[ClientView]
    """The newest push first."""
    left_out: int
    """Clients for which there was no room in the answer; `client_id` asks for fewer."""
    known: int
    """Clients that asked or pushed, with or without metrics."""
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
    query=PushesQuery,
    answer=ClientMetrics,
)
async def client_metrics(call: HttpCall) -> ClientMetrics:
    """Each node remembers the last push of some clients, in memory; all nodes are asked. Shows a hundred
    clients and the values of the newest pushes; `instance_id` asks for one client with its values."""
    context = call.context
    subscriptions = [
        _subscription(name, configs) for name, configs in sorted(context.state.client_metrics.items())
    ]
    pushes = await gather(context, call.query, sorted(context.state.brokers), call.authorization)
    return ClientMetrics(
        subscriptions=subscriptions,
        clients=pushes.newest_first(),
        left_out=pushes.left_out,
        known=pushes.known,
        silent_nodes=pushes.silent_nodes,
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
    query=PushesQuery,
    answer=NodeClients,
    access=HttpAccess.STATUS,
)
async def client_metrics_node(call: HttpCall) -> NodeClients:
    return pushes_here(call.context, call.query)


async def _set(call: HttpCall, values: dict[str, str | None]) -> None:
    services = call.context.services
    check_resource(services, CLIENT_METRICS_RESOURCE, call.path["name"])
    command = set_configs(
        services, call.access, CLIENT_METRICS_RESOURCE, call.path["name"], values, replace=False
    )
    await services.metadata.submit(command)


def _subscription(name: str, configs: dict[str, str]) -> SubscriptionView:
    parsed = MetricsSubscription.parse(name, configs)
    return SubscriptionView(
        name=name,
        metrics=parsed.metrics,
        interval_ms=parsed.interval_ms,
        match=configs.get("match", ""),
    )
