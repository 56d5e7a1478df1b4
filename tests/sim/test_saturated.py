"""Metadata is committed soon, however much data waits for the disks (S16). The clock is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chronik.metadata.commands import Noop
from chronik.model import StorageError
from chronik.sim import disk as sim_disk
from chronik.sim.world import SimNode
from chronik.storage import wal_queue
from chronik.storage.wal import Wal
from chronik.storage.wal_format import WalEntryKind
from tests.sim.quiet import LATENCY_SECONDS, Quiet

ROUND_BYTES = 64 * 1024
ROUND_SECONDS = 0.02
QUEUE_BYTES = 64 * ROUND_BYTES
"""As many rounds as the real limits allow (64 MB and 1 MB), only smaller."""
WRITES = 40
COMMIT_SECONDS_MAX = ROUND_SECONDS + 10 * LATENCY_SECONDS
"""The round under way has to end, on the leader and on a follower at the same time. A second round of data
would be too long."""


def parts_of(one: SimNode) -> Any:
    assert one.node is not None
    return one.node.parts


class Flood:
    """Whoever writes to a node as fast as its disk takes it: the queue in front of the WAL stays full."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._count = 0

    def committed(self, token: int) -> None:
        while not self._wal.pressure.full:
            self._count += 1
            payload = bytes(ROUND_BYTES // 8)
            self._wal.append(WalEntryKind.APPEND, bytes(16), 0, self._count, payload, self, self._count)

    def rejected(self, token: int, error: StorageError) -> None:
        raise error


def test_metadata_is_committed_soon_while_every_wal_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_queue, "ROUND_BYTES_MAX", ROUND_BYTES)
    monkeypatch.setattr(wal_queue, "SHARED_BYTES_MAX", ROUND_BYTES // 16)
    monkeypatch.setattr(wal_queue, "QUEUE_BYTES_MAX", QUEUE_BYTES)
    monkeypatch.setattr(sim_disk, "_LONG_SYNC_PROBABILITY", 0.0)
    quiet = Quiet(3)
    for one in quiet.cluster.nodes:
        one.disk.is_local = False

    async def fill(wal: Wal) -> None:
        Flood(wal).committed(0)

    async def main() -> list[float]:
        await quiet.start()
        loop, nodes = quiet.world.loop, quiet.cluster.nodes
        for one in nodes:
            one.disk.bytes_per_second = ROUND_BYTES / ROUND_SECONDS
            assert one.process is not None
            await loop.spawn(one.process, fill(parts_of(one).store.wal))
        (controller,) = (one for one in nodes if parts_of(one).raft.is_leader)
        assert controller.process is not None
        taken = []
        for number in range(WRITES):
            await asyncio.sleep(ROUND_SECONDS * (number * 0.37 % 1))  # at any moment of a round
            assert all(parts_of(one).store.wal._queue.data_bytes > QUEUE_BYTES / 2 for one in nodes)
            began = loop.now
            await loop.spawn(controller.process, parts_of(controller).metadata.submit(Noop()))
            taken.append(loop.now - began)
        return taken

    taken = quiet.world.run(main(), seconds_max=300, steps_max=3_000_000)
    assert max(taken) < COMMIT_SECONDS_MAX
