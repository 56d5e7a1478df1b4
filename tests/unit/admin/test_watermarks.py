"""Whoever follows a topic over HTTP is answered by the commit, not by a timer (S08, S25)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chronik.admin.routes.watermarks import WAIT_MS_MAX
from chronik.admin.watermark_waits import WatermarkWaits
from chronik.metadata.bus import EventBus
from chronik.metadata.events import HighWatermarkUpdated
from chronik.model import TopicPartition
from chronik.node import Node
from tests.unit.admin.support import Http, with_node

PATH = "/admin/topics/orders/watermarks"


def moved(topic: str, offset: int = 1) -> HighWatermarkUpdated:
    return HighWatermarkUpdated(tp=TopicPartition(topic, 0), high_watermark=offset)


async def test_the_move_of_a_topic_wakes_those_who_wait_for_it_and_nobody_else() -> None:
    bus = EventBus()
    waits = WatermarkWaits(bus)
    orders, other = (asyncio.create_task(waits.moved(name)) for name in ("orders", "other"))
    await asyncio.sleep(0)
    assert bus.wants_watermarks
    bus.publish([moved("orders")])
    await orders
    assert not other.done()
    other.cancel()
    await asyncio.wait((other,))
    assert not bus.wants_watermarks, "moves are published for nobody"
    after = asyncio.create_task(waits.moved("orders"))
    await asyncio.sleep(0)
    bus.publish([moved("orders", 2)])
    await after
    last = asyncio.create_task(waits.moved("orders"))
    await asyncio.sleep(0)
    await waits.close()
    await last
    assert not bus.wants_watermarks


def test_a_call_is_answered_by_the_commit(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders", "partitions": 2})
        first = (await http.get(PATH)).json
        assert first == {
            "topic": "orders",
            "total": 0,
            "high_watermarks": {"0": 0, "1": 0},
            "is_complete": True,
            "is_deleted": False,
        }
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = asyncio.create_task(http.get(f"{PATH}?seen=0"))
        while not node.parts.metadata.bus.wants_watermarks:
            await asyncio.wait((waiting,), timeout=0.001)
        await http.post("/admin/topics/orders/messages", {"value": "one", "partition": 1})
        answer = (await waiting).json
        assert (answer["total"], answer["high_watermarks"]) == (1, {"0": 0, "1": 1})
        assert loop.time() - began < WAIT_MS_MAX / 1000, "it was the timer"
        assert (await http.get(f"{PATH}?seen=0&wait_ms=0")).json["total"] == 1
        assert (await http.get(f"{PATH}?seen=1&wait_ms=0")).json["total"] == 1
        assert (await http.get(f"{PATH}?wait_ms={WAIT_MS_MAX + 1}")).status == 400
        assert (await http.get("/admin/topics/nowhere/watermarks")).status == 404
        waiting = asyncio.create_task(http.get(f"{PATH}?seen=1"))
        while not node.parts.metadata.bus.wants_watermarks:
            await asyncio.wait((waiting,), timeout=0.001)
        await http.call("DELETE", "/admin/topics/orders")
        gone = await waiting
        assert (gone.status, gone.json["is_deleted"]) == (200, True), "a console page would log an error"

    with_node(tmp_path, work)


def test_a_call_that_waits_does_not_delay_the_end_of_the_node(tmp_path: Path) -> None:
    answers: list[int] = []

    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders"})

        async def follow() -> None:
            answers.append((await http.get(f"{PATH}?seen=0")).status)

        following = asyncio.create_task(follow())
        while not node.parts.metadata.bus.wants_watermarks:
            await asyncio.wait((following,), timeout=0.001)
        await node.stop()
        await following

    with_node(tmp_path, work)
    assert answers == [200]
