"""Costly calls run one at a time, and few of them wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chronik.admin.errors import HttpError
from chronik.admin.one_at_a_time import WAITING_MAX, OneAtATime
from chronik.node import Node
from tests.unit.admin.support import Http, with_node


async def test_who_waits_gets_a_turn_and_who_is_too_many_does_not() -> None:
    turns, running, ran = OneAtATime(), 0, 0

    async def work() -> None:
        nonlocal running, ran
        async with turns.turn():
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            running -= 1
            ran += 1

    results = await asyncio.gather(*(work() for _ in range(WAITING_MAX + 3)), return_exceptions=True)
    refused = [one for one in results if isinstance(one, HttpError)]
    assert [one.status for one in refused] == [503, 503]
    assert ran == WAITING_MAX + 1
    await work()


@pytest.mark.parametrize("path", ["/admin/doctor", "/admin/reassign/plan"])
def test_costly_calls_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def work(_node: Node, http: Http) -> None:
        seen: list[OneAtATime] = []
        turn = OneAtATime.turn

        def noted(turns: OneAtATime) -> object:
            seen.append(turns)
            return turn(turns)

        monkeypatch.setattr(OneAtATime, "turn", noted)
        method = "GET" if path == "/admin/doctor" else "POST"
        assert (await http.call(method, path, None if method == "GET" else {})).status == 200
        assert len(seen) == 1

    with_node(tmp_path, work)
