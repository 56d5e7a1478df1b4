"""What clients pushed last (KIP-714): asked of all nodes, merged, and bounded.

An answer lists the newest pushes, with the values of as many as fit into `VALUES_BYTES_MAX`, each push with
all that is kept of it or with none. Who wants the values of a certain client asks for that client alone. What
is left out is counted. Nodes are asked a few at a time, and what does not belong into the answer is let go
before the next ones answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.errors import HttpError
from chronik.admin.peers import understood
from chronik.model import NodeId, Unavailable
from chronik.server.last_pushes import RECENT_MAX, LastPush
from chronik.server.otlp import POINTS_BYTES_MAX

__all__ = ["ClientView", "NodeClients", "Pushes", "PushesQuery", "gather", "pushes_here"]

ASK_SECONDS: Final = 3.0
ASKED_AT_ONCE: Final = 8
CLIENTS_MAX: Final = RECENT_MAX
"""Clients in an answer."""
VALUES_BYTES_MAX: Final = 4 * POINTS_BYTES_MAX
"""Values in an answer, as they are kept: packed. As JSON they take two to six times as much."""
NODE_VALUES_BYTES_MAX: Final = 2 * POINTS_BYTES_MAX
"""The part of `VALUES_BYTES_MAX` that one node's values may take."""
NODE_ANSWER_BYTES_MAX: Final = 1024 * 1024
"""What another node may answer: the rows of its clients and some values."""


class MetricValue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    unit: str
    kind: str
    is_delta: bool
    """The value is what was added since the push before."""
    attributes: tuple[tuple[str, str], ...]
    time_ms: int
    value: float
    """The value; the sum for a histogram."""
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
    """Empty if there was no room for them in the answer."""
    values_kept: int
    """How many values the node has; those that are not here come if `instance_id` asks for this client."""
    values_dropped: int
    """A lower bound of how many further values were pushed that are not kept."""
    values_bytes: int
    """What the values take where they are kept."""


class PushesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client_id: str = ""
    """Only clients whose client id begins so."""
    instance_id: str = ""
    """Only this client."""


class NodeClients(msgspec.Struct, frozen=True, kw_only=True):
    clients: list[ClientView]
    """The newest push first."""
    known: int
    """Clients that asked or pushed, with or without metrics."""


class Pushes:
    """The newest pushes of all nodes, each client once."""

    def __init__(self) -> None:
        self._latest: dict[str, ClientView] = {}
        self.left_out = 0
        self.known = 0
        self.silent_nodes: dict[str, str] = {}

    def add(self, told: NodeClients) -> None:
        self.known += told.known
        for client in told.clients:
            other = self._latest.get(client.instance_id)  # it may have pushed to several nodes
            if other is None or client.pushed_ms >= other.pushed_ms:
                self._latest[client.instance_id] = client
        newest = sorted(self._latest.values(), key=lambda one: -one.pushed_ms)
        self.left_out += max(0, len(newest) - CLIENTS_MAX)
        self._latest = {one.instance_id: one for one in _with_values(newest[:CLIENTS_MAX], VALUES_BYTES_MAX)}

    def newest_first(self) -> list[ClientView]:
        return list(self._latest.values())


async def gather(
    context: AdminContext, wanted: PushesQuery, node_ids: list[NodeId], authorization: str | None
) -> Pushes:
    """What this node and the others answer; nodes that cannot be asked are among `silent_nodes`."""
    pushes, slots = Pushes(), asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(node_id: NodeId) -> None:
        async with slots:
            try:
                if node_id == context.node_id:
                    pushes.add(pushes_here(context, wanted))
                else:
                    pushes.add(await _ask(context, node_id, wanted, authorization))
            except (Unavailable, HttpError) as error:
                pushes.silent_nodes[str(node_id)] = str(error)

    await asyncio.gather(*map(ask, node_ids))
    return pushes


def pushes_here(context: AdminContext, wanted: PushesQuery) -> NodeClients:
    telemetry = context.services.telemetry
    found: list[ClientView] = []
    room = NODE_VALUES_BYTES_MAX
    for push in telemetry.recent():
        if wanted.instance_id not in ("", str(push.instance_id)):
            continue
        if not push.client["client_id"].startswith(wanted.client_id):
            continue
        view = _view(context.node_id, push, room)
        room -= view.values_bytes if view.values else 0
        found.append(view)
    return NodeClients(clients=found, known=len(telemetry))


async def _ask(
    context: AdminContext, node_id: NodeId, wanted: PushesQuery, authorization: str | None
) -> NodeClients:
    query: Mapping[str, object] = msgspec.to_builtins(wanted)
    answer = await context.peers.ask(
        node_id,
        "GET",
        f"/_node/client-metrics?{urlencode(query)}",
        timeout_s=ASK_SECONDS,
        authorization=authorization,
        answer_bytes_max=NODE_ANSWER_BYTES_MAX,
    )
    return understood(node_id, answer, NodeClients)


def _with_values(clients: list[ClientView], room: int) -> list[ClientView]:
    """The same clients; beyond `room` they are without values."""
    found = []
    for client in clients:
        if client.values and client.values_bytes > room:
            found.append(msgspec.structs.replace(client, values=()))
            continue
        room -= client.values_bytes if client.values else 0
        found.append(client)
    return found


def _view(node_id: NodeId, push: LastPush, room: int) -> ClientView:
    points, client = push.points, push.client
    values_bytes = 0 if points is None else len(points.data)
    shown = [] if points is None or values_bytes > room else points.unpack()
    return ClientView(
        instance_id=str(push.instance_id),
        node_id=node_id,
        client_id=client["client_id"],
        software=f"{client['client_software_name']} {client['client_software_version']}".strip(),
        address=client["client_source_address"],
        pushed_ms=push.pushed_ms,
        interval_ms=push.interval_ms,
        size_bytes=push.size_bytes,
        is_readable=points is not None,
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
            for point in shown
        ),
        values_kept=0 if points is None else points.count,
        values_dropped=0 if points is None else points.left_out,
        values_bytes=values_bytes,
    )
