"""The driver on a disk that fails: nothing is applied twice, and the node comes back by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from chronik.cluster.raft_driver import RaftDriver
from chronik.cluster.raft_storage import RaftStorage
from chronik.metadata.store import Committed
from chronik.model import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition, Unavailable
from chronik.raft.messages import Message
from chronik.sim.disk import DiskView, SimDisk
from chronik.sim.loop import SimLoop
from chronik.storage.log import LogConfig
from chronik.storage.recovery import open_store
from chronik.storage.store import StoreOptions

ROOT = Path("/data")


class Applied:
    def __init__(self) -> None:
        self.commands: list[tuple[int, bytes]] = []

    def on_committed(self, entries: Sequence[Committed]) -> None:
        self.commands += [(entry.index, bytes(entry.data)) for entry in entries]

    def on_applied(self, index: int) -> None:
        pass

    def on_lost(self, why: str) -> None:
        pass

    def on_snapshot(self, data: bytes | memoryview) -> None:
        raise AssertionError("no snapshot was taken")


class NoPeers:
    def send(self, message: Message) -> None:
        pass

    def tick(self) -> None:
        pass

    async def forward(self, leader: int, data: bytes) -> int:
        raise Unavailable("nobody else")

    async def ask_around(self, data: bytes) -> int:
        raise Unavailable("nobody else")


async def proposed(driver: RaftDriver, data: bytes) -> None:
    """Propose until somebody takes it."""
    while True:
        try:
            await driver.append(data)
            return
        except Unavailable:
            await asyncio.sleep(0.1)


def test_a_failed_write_is_recovered_from_without_applying_anything_twice() -> None:
    loop = SimLoop(random.Random(1))
    disk = SimDisk(random.Random(1))
    applied = Applied()

    async def main() -> None:
        view = DiskView(disk, loop.world, loop, lambda why: None)
        store, _ = open_store(view, ROOT, StoreOptions())
        log = store.open_log(TopicPartition(METADATA_TOPIC, 0), METADATA_TOPIC_ID, LogConfig())
        driver = RaftDriver(
            node_id=1,
            voters=(1,),
            storage=RaftStorage(store, log, ROOT),
            transport=NoPeers(),
            rng=random.Random(1),
            take_snapshot=bytes,
        )
        with pytest.raises(Unavailable):
            driver.propose(b"too early")
        await driver.start(applied)
        for number in range(3):
            await proposed(driver, b"%d" % number)
            await asyncio.sleep(0.1)
        disk.sync_failures = 1
        await proposed(driver, b"lost or not")
        await asyncio.sleep(0.1)
        with pytest.raises(Unavailable):
            driver.propose(b"not now")
        await proposed(driver, b"last")
        await asyncio.sleep(1)
        await driver.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []
    assert [data for _, data in applied.commands if data != b"lost or not"] == [b"0", b"1", b"2", b"last"]
    indexes = [index for index, _ in applied.commands]
    assert indexes == sorted(set(indexes))
