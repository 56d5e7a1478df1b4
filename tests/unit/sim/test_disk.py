from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from chronik.config import Settings
from chronik.sim.disk import DiskView, SimDisk
from chronik.sim.loop import SimLoop
from chronik.sim.process import Process
from chronik.sim.world import SimNode, World
from chronik.storage.disk import IoThread

SYNCS = 100


def sync_much(view: DiskView) -> None:
    file = view.open(Path("/file"), create=True)
    for number in range(SYNCS):
        file.write_at(number, [b"x"])
        file.sync()
    view.sync_directory(Path("/"))


def test_work_that_is_under_way_gets_quick_with_the_disk() -> None:
    """Else a checkpoint that began on a slow disk goes on for minutes after everything was healed."""
    loop = SimLoop(random.Random(1))
    disk, process = SimDisk(random.Random(1)), Process("n1", "n1")
    view = DiskView(disk, process, loop, lambda why: None)
    over: list[float] = []

    async def main() -> None:
        disk.slowness = 1000.0
        view.submit(IoThread.BACKGROUND, lambda: sync_much(view), lambda *_: over.append(loop.now))
        view.submit(IoThread.BACKGROUND, lambda: None, lambda *_: over.append(loop.now))
        await asyncio.sleep(1.0)
        assert over == []
        disk.slowness = 1.0
        await asyncio.sleep(60.0)

    loop.run(main(), seconds_max=100.0, steps_max=100_000)
    assert len(over) == 2
    assert over[0] == pytest.approx(1.0, abs=0.5)
    assert over == sorted(over)


def test_what_a_quickened_sync_saved_is_safe_when_its_work_is_over() -> None:
    for seed in range(30):
        loop = SimLoop(random.Random(seed))
        disk, process = SimDisk(random.Random(seed)), Process("n1", "n1")
        view = DiskView(disk, process, loop, lambda why: None)

        async def main(loop: SimLoop = loop, disk: SimDisk = disk, view: DiskView = view) -> None:
            done = loop.create_future()
            disk.slowness = 1000.0
            view.submit(IoThread.BACKGROUND, lambda: sync_much(view), lambda *_: done.set_result(None))
            await asyncio.sleep(1.0)
            disk.slowness = 1.0
            await done
            disk.lose_power(loop.now)

        loop.run(main(), seconds_max=100.0, steps_max=100_000)
        assert disk.files()[0][1].read(0, 1000) == b"x" * SYNCS


def test_a_crash_inside_work_of_a_lane_comes_after_what_that_work_did() -> None:
    """Such work takes no time on the loop: its writes would be of a future that never came, and all lost."""
    left = set()
    for seed in range(30):
        world = World(seed)
        node = SimNode(world, Settings(node_id=1))
        node.process = world.process("n1", "n1")
        node.view = view = DiskView(node.disk, node.process, world.loop, node._crash_inside)

        def write(view: DiskView = view) -> None:
            file = view.open(Path("/file"), create=True)
            view.sync_directory(Path("/"))
            file.write_at(0, [b"x" * 4096])
            view.crash_in = 1
            file.sync()

        async def main(view: DiskView = view) -> None:
            view.submit(IoThread.WAL, write, lambda *_: None)
            await asyncio.sleep(1.0)

        world.run(main(), seconds_max=100.0, steps_max=100_000)
        assert not node.process.alive
        left.add(node.disk.files()[0][1].read(0, 5000).count(b"x"))
    assert {0, 4096} < left, "all of it, nothing, or some sectors"
