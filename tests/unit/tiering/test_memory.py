"""Memory of reads that are under way."""

from __future__ import annotations

import asyncio

import pytest

from chronik.metrics import TieringStats
from chronik.objects.store import ObjectStoreBusy
from chronik.tiering.memory import ByteBudget


async def test_who_waits_gets_memory_in_turn() -> None:
    stats = TieringStats()
    budget = ByteBudget(10, stats)
    order: list[str] = []

    async def work(name: str, size: int) -> None:
        async with budget.taken(size):
            order.append(name)
            assert stats.read_memory_bytes <= max(10, size)
            await ended.wait()

    ended = asyncio.Event()
    first = [asyncio.ensure_future(work(name, 5)) for name in "ab"]
    large = asyncio.ensure_future(work("larger than all", 30))
    last = asyncio.ensure_future(work("small", 1))
    given_up = asyncio.ensure_future(work("given up", 1))
    await turns()
    assert order == ["a", "b"]
    given_up.cancel()
    ended.set()
    await asyncio.gather(*first, large, last)
    assert order == ["a", "b", "larger than all", "small"]
    assert stats.read_memory_bytes == 0


async def test_who_gives_up_as_the_turn_comes_gives_it_to_the_next() -> None:
    stats = TieringStats()
    budget = ByteBudget(10, stats)

    async def work() -> None:
        async with budget.taken(10):
            pass

    with budget.holding() as holding:
        holding.resize(10)
        tasks = [asyncio.ensure_future(work()) for _ in range(3)]
        await turns()
        tasks[1].cancel()
    tasks[0].cancel()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert done[2] is None
    assert stats.read_memory_bytes == 0


async def test_all_may_give_up_in_one_turn() -> None:
    """As the reads under way do when a node stops. Others come behind them."""
    stats = TieringStats()
    budget = ByteBudget(10, stats)

    async def work() -> None:
        async with budget.taken(10):
            await asyncio.Event().wait()

    tasks = [asyncio.ensure_future(work()) for _ in range(4)]
    await turns()
    for task in tasks[:3]:
        task.cancel()
    ended = await asyncio.gather(*tasks[:3], return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * 3
    assert stats.read_memory_bytes == 10, "of the fourth"
    tasks[3].cancel()
    await asyncio.wait(tasks)
    assert stats.read_memory_bytes == 0


def test_who_does_not_wait_is_refused() -> None:
    stats = TieringStats()
    budget = ByteBudget(10, stats)
    with budget.holding() as one, budget.holding() as other:
        one.resize(30)
        one.resize(8)
        other.resize(2)
        with pytest.raises(ObjectStoreBusy):
            other.resize(3)
        assert stats.read_memory_bytes == 8
    assert stats.read_memory_bytes == 0


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
