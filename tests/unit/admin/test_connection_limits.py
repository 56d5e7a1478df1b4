"""When many connect to the HTTP port: nobody takes it all, and a probe always gets in."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from chronik import open_files
from chronik.admin import connection_limits, server
from chronik.admin.connection_limits import Admission, admit, kept_for_probes
from chronik.node import Node
from tests.unit.admin.support import HOST, Http, with_node

MOST = 40
ORDINARY = MOST - kept_for_probes(MOST)
HOG, OTHER = "192.0.2.1", "192.0.2.2"


@dataclass
class OpenConnection:
    host: str
    waits_for_client: bool = False
    is_probe: bool = False
    silent_since: float = 0.0


def fill(host: str, *, idle: bool) -> tuple[list[OpenConnection], Admission]:
    """Connections of one address until one is not simply welcome, and what that one hears."""
    connections: list[OpenConnection] = []
    for number in itertools.count():
        admission, leaves = admit(connections, host, MOST)
        if admission is not Admission.ADMITTED or leaves is not None:
            return connections, admission
        connections.append(OpenConnection(host, idle, silent_since=number))
    raise AssertionError


@pytest.mark.parametrize("idle", [True, False])
def test_one_address_has_half(idle: bool) -> None:
    connections, _ = fill(HOG, idle=idle)
    assert len(connections) == ORDINARY // 2
    assert admit(connections, OTHER, MOST) == (Admission.ADMITTED, None)


def test_the_quietest_of_the_same_address_makes_room() -> None:
    connections, _ = fill(HOG, idle=True)
    quiet_other = OpenConnection(OTHER, waits_for_client=True, silent_since=-1.0)
    assert admit([quiet_other, *connections], HOG, MOST) == (Admission.ADMITTED, connections[0])


def test_where_all_are_busy_a_probe_gets_in() -> None:
    connections, admission = fill(HOG, idle=False)
    assert admission is Admission.PROBE
    connections += [OpenConnection(f"198.51.100.{number}") for number in range(ORDINARY - len(connections))]
    for number in range(kept_for_probes(MOST)):
        assert admit(connections, OTHER, MOST) == (Admission.PROBE, None)
        connections.append(OpenConnection(OTHER, is_probe=True, waits_for_client=True, silent_since=number))
    assert len(connections) == MOST
    # Probes take milliseconds; one who says nothing makes room for the next.
    assert admit(connections, OTHER, MOST) == (Admission.PROBE, connections[ORDINARY])
    for one in connections:
        one.waits_for_client = False
    assert admit(connections, OTHER, MOST) == (Admission.REFUSED, None)


def test_busy_probes_of_one_address_leave_the_others_their_room() -> None:
    connections, _ = fill(HOG, idle=False)
    while (admission := admit(connections, HOG, MOST)[0]) is not Admission.REFUSED:
        connections.append(OpenConnection(HOG, is_probe=admission is Admission.PROBE))
    for number in itertools.count():
        admission, _ = admit(connections, f"198.51.100.{number}", MOST)
        if admission is Admission.REFUSED:
            break
        connections.append(OpenConnection(f"198.51.100.{number}", is_probe=admission is Admission.PROBE))
    assert len(connections) == MOST


def test_this_machine_gets_in_where_others_may_only_probe() -> None:
    connections = [OpenConnection(f"198.51.100.{number}") for number in range(ORDINARY)]
    assert admit(connections, OTHER, MOST) == (Admission.PROBE, None)
    assert admit(connections, "127.0.0.1", MOST) == (Admission.ADMITTED, None)
    assert len(fill("127.0.0.1", idle=True)[0]) == ORDINARY


def test_a_probe_is_answered_while_all_connections_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "HTTP_CONNECTIONS_MAX", 20)
    monkeypatch.setattr(connection_limits, "is_loopback", lambda host: False)
    monkeypatch.setattr(server._Protocol, "waits_for_client", False)

    async def work(node: Node, http: Http) -> None:
        opened = node._http._server._state.connections  # type: ignore[union-attr]
        busy = []
        while len(opened) < 9:  # half of those that are not kept back
            _, writer = await asyncio.open_connection(HOST, http.port)
            busy.append(writer)
        assert (await http.get("/health")).status == 200
        refused = await http.get("/metrics")
        assert (refused.status, refused.json["code"]) == (503, "too_many_connections")
        for writer in busy:
            writer.close()

    with_node(tmp_path, work)
