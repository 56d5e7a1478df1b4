"""Who leaves the ISR because it does not keep up, and who comes back (S02)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.model import NodeId
from chronik.replication.partition import Partition
from tests.unit.replication.support import Alone, Replicas, context, put
from tests.unit.storage.support import opened

LAG_SECONDS_MAX = 10.0


class Remembering(Alone):
    def __init__(self) -> None:
        self.proposed: list[tuple[NodeId, ...]] = []

    def propose(self, partition: Partition, isr: tuple[NodeId, ...]) -> None:
        self.proposed.append(isr)


def assignment(isr: tuple[NodeId, ...], partition_epoch: int) -> Assignment:
    return Assignment(
        partition=0, replicas=(1, 2, 3), isr=isr, leader=1, leader_epoch=1, partition_epoch=partition_epoch
    )


async def test_a_follower_that_lags_leaves_the_isr_and_the_others_are_enough(tmp_path: Path) -> None:
    around = Remembering()
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store, context(around)).add("orders")
        partition.assign(assignment((1, 2, 3), 1))
        began = asyncio.get_running_loop().time()
        put(partition, (b"key", b"value"), now_ms=1)
        await store.wal.drained()
        partition.follower_acknowledged(2, 1, 0, began)
        partition.follower_acknowledged(3, 0, 0, began)
        partition.check_followers(began + LAG_SECONDS_MAX - 1, LAG_SECONDS_MAX)
        assert (around.proposed, partition.high_watermark) == ([], 0)
        for _ in range(2):  # one that is under way is not proposed again
            partition.check_followers(began + LAG_SECONDS_MAX + 1, LAG_SECONDS_MAX)
        assert around.proposed == [(1, 2)]
        assert partition.high_watermark == 0, "until it is decided the old ISR counts"
        partition.assign(assignment((1, 2), 2))
        assert partition.high_watermark == 1
        partition.follower_acknowledged(3, 1, 0, began + 20)
        assert around.proposed == [(1, 2), (1, 2, 3)]


async def test_a_follower_that_is_always_a_little_behind_stays(tmp_path: Path) -> None:
    """While clients keep writing nobody ever has everything: what counts is when it had what was there."""
    around = Remembering()
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store, context(around)).add("orders")
        partition.assign(assignment((1, 2, 3), 1))
        now = asyncio.get_running_loop().time()
        for offset in range(20):
            put(partition, (b"key", b"value"), now_ms=1)
            for peer in (2, 3):
                partition.follower_acknowledged(peer, offset, 0, now)
            now += LAG_SECONDS_MAX / 2
            partition.check_followers(now, LAG_SECONDS_MAX)
        await store.wal.drained()
        assert around.proposed == []
