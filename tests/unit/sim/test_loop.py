from __future__ import annotations

import asyncio
import gc
import random
import warnings

import pytest

from chronik.sim.loop import SimLoop, Unhandled
from chronik.sim.network import SimNetwork
from chronik.sim.process import Process


def world(seed: int = 1) -> tuple[SimLoop, SimNetwork]:
    loop = SimLoop(random.Random(seed))
    return loop, SimNetwork(loop, random.Random(seed), fragment_probability=0.5)


def run(loop: SimLoop, main, seconds_max: float = 1000.0):
    return loop.run(main, seconds_max=seconds_max, steps_max=1_000_000)


def test_time_is_virtual_and_exact() -> None:
    loop, _ = world()

    async def main() -> float:
        await asyncio.sleep(600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return loop.time()

    assert run(loop, main()) == pytest.approx(630, abs=0.01)


def test_callbacks_of_one_process_keep_their_order() -> None:
    loop, _ = world()
    seen: list[int] = []

    async def main() -> None:
        for number in range(20):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(0.1)

    run(loop, main())
    assert seen == list(range(20))


def test_processes_take_turns_by_the_seed() -> None:
    def order(seed: int) -> list[str]:
        loop, _ = world(seed)
        seen: list[str] = []

        async def count(name: str) -> None:
            for _ in range(10):
                seen.append(name)
                await asyncio.sleep(0)

        async def main() -> None:
            tasks = [loop.spawn(Process(name, name), count(name)) for name in "abc"]
            await asyncio.gather(*tasks)

        run(loop, main())
        return seen

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_a_killed_process_runs_no_further_line() -> None:
    loop, _ = world()
    process = Process("a", "a")
    seen: list[float] = []

    async def work() -> None:
        try:
            while True:
                seen.append(loop.now)
                await asyncio.sleep(1)
        finally:
            seen.append(-1.0)

    async def main() -> int:
        loop.spawn(process, work())
        await asyncio.sleep(3.5)
        loop.kill(process)
        count = len(seen)
        await asyncio.sleep(10)
        return count

    assert run(loop, main()) == len(seen) == 4
    assert -1.0 not in seen


def test_a_paused_process_catches_up() -> None:
    loop, _ = world()
    process = Process("a", "a")
    seen: list[float] = []

    async def work() -> None:
        while True:
            seen.append(loop.now)
            await asyncio.sleep(1)

    async def main() -> None:
        loop.spawn(process, work())
        await asyncio.sleep(1.5)
        loop.pause(process)
        await asyncio.sleep(5)
        loop.resume(process)
        await asyncio.sleep(0.1)

    run(loop, main())
    assert [round(moment, 1) for moment in seen] == [0.0, 1.0, 6.5]


def test_a_drifting_clock_runs_at_its_own_rate() -> None:
    loop, _ = world()
    process = Process("a", "a")

    async def nap() -> float:
        before = loop.time()
        await asyncio.sleep(10)
        return loop.time() - before

    async def main() -> tuple[float, float]:
        process.drift(loop.now, 2.0)
        return await loop.spawn(process, nap()), loop.now

    told, passed = run(loop, main())
    assert told == pytest.approx(10, abs=0.01)
    assert passed == pytest.approx(5, abs=0.01)


def test_a_world_in_which_everybody_waits_is_over() -> None:
    loop, _ = world()
    with pytest.raises(TimeoutError, match="every task waits"):
        run(loop, asyncio.Event().wait())


def test_an_error_that_nobody_handles_ends_the_run() -> None:
    loop, _ = world()

    async def main() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(Unhandled):
        run(loop, main())
    assert "ZeroDivisionError" in loop.failures[0]


def test_a_world_that_is_over_starts_nothing() -> None:
    """Code that is torn down may try to clean up: whatever it starts then would never be waited for."""
    loop, _ = world()
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeError):
            loop.create_task(asyncio.sleep(1))
        gc.collect()
