"""When many connect to the HTTP port: nobody takes it all, and a probe always gets in."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from chronik import open_files
from chronik.admin import crowd, server
from chronik.admin.crowd import Admission, admit, kept_for_probes
from chronik.node import Node
from tests.unit.admin.support import HOST, Http, with_node

MOST = 40
ORDINARY = MOST - kept_for_probes(MOST)
HOG, OTHER = "192.0.2.1", "192.0.2.2"


@dataclass
class Guest:
    host: str
    waits_for_client: bool = False
    is_probe: bool = False
    silent_since: float = 0.0


def fill(host: str, *, idle: bool) -> tuple[list[Guest], Admission]:
    """Connections of one address until one is not simply welcome, and what that one hears."""
    guests: list[Guest] = []
    for number in itertools.count():
        admission, leaves = admit(guests, host, MOST)
        if admission is not Admission.WELCOME or leaves is not None:
            return guests, admission
        guests.append(Guest(host, idle, silent_since=number))
    raise AssertionError


@pytest.mark.parametrize("idle", [True, False])
def test_one_address_has_half(idle: bool) -> None:
    guests, _ = fill(HOG, idle=idle)
    assert len(guests) == ORDINARY // 2
    assert admit(guests, OTHER, MOST) == (Admission.WELCOME, None)


def test_the_quietest_of_the_same_address_makes_room() -> None:
    guests, _ = fill(HOG, idle=True)
    quiet_other = Guest(OTHER, waits_for_client=True, silent_since=-1.0)
    assert admit([quiet_other, *guests], HOG, MOST) == (Admission.WELCOME, guests[0])


def test_where_all_are_busy_a_probe_gets_in() -> None:
    guests, admission = fill(HOG, idle=False)
    assert admission is Admission.PROBE
    guests += [Guest(f"198.51.100.{number}") for number in range(ORDINARY - len(guests))]
    for number in range(kept_for_probes(MOST)):
        assert admit(guests, OTHER, MOST) == (Admission.PROBE, None)
        guests.append(Guest(OTHER, is_probe=True, waits_for_client=True, silent_since=number))
    assert len(guests) == MOST
    # Probes take milliseconds; one who says nothing makes room for the next.
    assert admit(guests, OTHER, MOST) == (Admission.PROBE, guests[ORDINARY])
    for one in guests:
        one.waits_for_client = False
    assert admit(guests, OTHER, MOST) == (Admission.REFUSED, None)


def test_busy_probes_of_one_address_leave_the_others_their_room() -> None:
    guests, _ = fill(HOG, idle=False)
    while (admission := admit(guests, HOG, MOST)[0]) is not Admission.REFUSED:
        guests.append(Guest(HOG, is_probe=admission is Admission.PROBE))
    for number in itertools.count():
        admission, _ = admit(guests, f"198.51.100.{number}", MOST)
        if admission is Admission.REFUSED:
            break
        guests.append(Guest(f"198.51.100.{number}", is_probe=admission is Admission.PROBE))
    assert len(guests) == MOST


def test_this_machine_gets_in_where_others_may_only_probe() -> None:
    guests = [Guest(f"198.51.100.{number}") for number in range(ORDINARY)]
    assert admit(guests, OTHER, MOST) == (Admission.PROBE, None)
    assert admit(guests, "127.0.0.1", MOST) == (Admission.WELCOME, None)
    assert len(fill("127.0.0.1", idle=True)[0]) == ORDINARY


def test_a_probe_is_answered_while_all_connections_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "HTTP_CONNECTIONS_MAX", 20)
    monkeypatch.setattr(crowd, "is_loopback", lambda host: False)
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
