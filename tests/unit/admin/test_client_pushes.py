"""What clients pushed last, as HTTP tells it: bounded, whatever is kept and whatever other nodes answer."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from chronik.admin.client_pushes import (
    CLIENTS_MAX,
    NODE_ANSWER_BYTES_MAX,
    VALUES_BYTES_MAX,
    NodeClients,
    Pushes,
    PushesQuery,
    gather,
    pushes_here,
)
from chronik.admin.context import AdminContext
from chronik.client_state import Share
from chronik.model import Unavailable
from chronik.server.otlp import POINTS_BYTES_MAX, POINTS_MAX, PackedPoints, read_metrics
from chronik.server.telemetry import Telemetry
from tests.unit.server.test_otlp import gauge, metrics_data

ALL = PushesQuery()
WORST = "\x01" * 200
"""A text that is six times as long in JSON."""


def client(client_id: str, other: str = "x") -> dict[str, str]:
    keys = ("client_software_name", "client_software_version", "client_source_address", "client_source_port")
    return {"client_id": client_id, **dict.fromkeys(keys, other)}


def instance(number: int) -> uuid.UUID:
    return uuid.UUID(int=number + 2)


def full() -> PackedPoints:
    points = read_metrics(metrics_data(*(gauge(WORST, 1.0, a=WORST, b=WORST) for _ in range(POINTS_MAX))))
    assert POINTS_BYTES_MAX * 0.9 < len(points.data) <= POINTS_BYTES_MAX
    return points


def context(telemetry: Telemetry, peers: Any = None, node_id: int = 1) -> AdminContext:
    services = SimpleNamespace(telemetry=telemetry)
    return cast(AdminContext, SimpleNamespace(services=services, node_id=node_id, peers=peers))


def pushed(count: int, points: PackedPoints, client_id: str = "app-", first: int = 0) -> Telemetry:
    telemetry = Telemetry(share=Share("client_metrics", 1 << 30))
    for number in range(first, first + count):
        telemetry.keep(
            instance(number),
            "User:a",
            client(f"{client_id}{number}", WORST),
            points,
            size_bytes=1,
            now_ms=number,
        )
    return telemetry


class Peers:
    """Other nodes that answer as they would by HTTP."""

    def __init__(self, answers: dict[int, Telemetry]) -> None:
        self._answers = answers
        self.limits: set[int] = set()
        self.paths: set[str] = set()
        self.sizes: list[int] = []

    async def ask(self, node_id: int, _method: str, path: str, **options: Any) -> Any:
        self.limits.add(options["answer_bytes_max"])
        self.paths.add(path)
        if node_id not in self._answers:
            raise Unavailable(f"node {node_id} is not there")
        answer = pushes_here(context(self._answers[node_id], node_id=node_id), ALL)
        data = msgspec.json.encode(answer)
        self.sizes.append(len(data))
        return msgspec.json.decode(data)


def test_a_node_answers_within_what_others_take() -> None:
    answer = pushes_here(context(pushed(CLIENTS_MAX, full(), WORST)), ALL)
    assert len(answer.clients) == CLIENTS_MAX
    assert len(msgspec.json.encode(answer)) < NODE_ANSWER_BYTES_MAX
    assert answer.clients[0].instance_id == str(instance(CLIENTS_MAX - 1))
    with_values = [one for one in answer.clients if one.values]
    assert 0 < len(with_values) < CLIENTS_MAX
    assert {one.values_kept for one in answer.clients} == {full().count}
    assert {one.values_dropped for one in answer.clients} == {full().left_out}


async def test_many_nodes_make_no_longer_answer() -> None:
    others = {number: pushed(CLIENTS_MAX, full(), first=CLIENTS_MAX * number) for number in (2, 3, 4, 5)}
    peers = Peers(others)
    answer = await gather(
        context(pushed(CLIENTS_MAX, full()), peers), PushesQuery(client_id="app"), [1, 2, 3, 4, 5, 6], None
    )
    clients = answer.newest_first()
    assert [one.instance_id for one in clients] == [
        str(instance(number)) for number in range(6 * CLIENTS_MAX - 1, 5 * CLIENTS_MAX - 1, -1)
    ]
    assert answer.left_out == 4 * CLIENTS_MAX
    assert answer.known == 5 * CLIENTS_MAX
    assert list(answer.silent_nodes) == ["6"]
    assert 0 < sum(one.values_bytes for one in clients if one.values) <= VALUES_BYTES_MAX
    assert peers.limits == {NODE_ANSWER_BYTES_MAX}
    assert peers.paths == {"/_node/client-metrics?client_id=app&instance_id="}


def test_what_is_left_out_can_be_asked_for() -> None:
    node = context(pushed(CLIENTS_MAX, full()))
    assert pushes_here(node, ALL).clients[-1].values == ()
    (oldest,) = pushes_here(node, PushesQuery(instance_id=str(instance(0)))).clients
    assert len(oldest.values) == oldest.values_kept == full().count
    named = pushes_here(node, PushesQuery(client_id="app-9")).clients
    assert {one.client_id[:5] for one in named} == {"app-9"}
    assert len(named) == 11


def test_a_client_that_pushed_to_several_nodes_is_shown_once() -> None:
    pushes = Pushes()
    for node_id, first in ((1, pushed(1, PackedPoints())), (2, Telemetry())):
        if node_id == 2:
            first.keep(instance(0), "User:a", client("app"), PackedPoints(), size_bytes=1, now_ms=5)
        pushes.add(pushes_here(context(first, node_id=node_id), ALL))
    (one,) = pushes.newest_first()
    assert (one.node_id, one.pushed_ms, pushes.left_out) == (2, 5, 0)


async def test_a_node_that_answers_something_else_is_shown_as_silent() -> None:
    async def ask(*_args: object, **_options: object) -> Any:
        return {"clients": 7}

    answer = await gather(context(Telemetry(), SimpleNamespace(ask=ask)), ALL, [1, 2], None)
    assert list(answer.silent_nodes) == ["2"]
    assert msgspec.convert({"clients": [], "known": 0}, NodeClients).clients == []
