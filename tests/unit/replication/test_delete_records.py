"""Deleting records on a leader: done when every live replica has done it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chronik.metadata.values import Partition as Assignment
from chronik.model import ErrorCode, NodeId, RequestError
from chronik.replication.partition import Partition
from chronik.replication.progress import FollowerProgress
from tests.unit.replication.support import NoHooks, Replicas, put
from tests.unit.storage.support import opened


class Hooks(NoHooks):
    def __init__(self) -> None:
        self.alive = {1, 2, 3}
        self.told = asyncio.Event()
        """There is something that followers do not know, new records or not."""

    def appended(self, partition: Partition) -> None:
        self.told.set()

    def is_alive(self, node_id: NodeId) -> bool:
        return node_id in self.alive


def assignment(epoch: int, leader: NodeId = 1) -> Assignment:
    nodes = (1, 2, 3)
    return Assignment(
        partition=0, replicas=nodes, isr=nodes, leader=leader, leader_epoch=epoch, partition_epoch=epoch
    )


@contextlib.asynccontextmanager
async def led(folder: Path, hooks: Hooks) -> AsyncIterator[Partition]:
    """A partition with ten records, led here and followed by two nodes that have them all."""
    async with opened(folder) as (store, _):
        partition = Replicas(store, hooks).add("orders")
        partition.assign(assignment(1))
        for number in range(10):
            put(partition, (b"key", b"%d" % number), now_ms=1)
        await store.wal.drained()
        for peer in (2, 3):
            progress = FollowerProgress(peer, 10, 0.0)
            progress.acked_end, progress.log_start_offset = 10, 0
            partition.followers[peer] = progress
        partition.update_watermark()
        assert partition.high_watermark == 10
        hooks.told.clear()
        async with asyncio.timeout(60):
            yield partition


async def begin(partition: Partition, hooks: Hooks) -> asyncio.Future[int]:
    """Delete up to 7; goes on when the leader has done it and followers are about to hear of it."""
    deletion = asyncio.ensure_future(partition.delete_records(7))
    await hooks.told.wait()
    assert partition.log_start_offset == 7
    return deletion


def reports(partition: Partition, peer: NodeId, log_start_offset: int) -> None:
    partition.followers[peer].log_start_offset = log_start_offset
    partition.check_low_watermark()


def test_it_ends_when_the_last_live_replica_has_followed(tmp_path: Path) -> None:
    async def run() -> None:
        hooks = Hooks()
        async with led(tmp_path, hooks) as partition:
            deletion = await begin(partition, hooks)
            reports(partition, 2, 7)
            await asyncio.sleep(0)
            assert not deletion.done()
            assert partition.low_watermark == 0
            reports(partition, 3, 7)
            assert await deletion == 7

    asyncio.run(run())


def test_a_dead_replica_is_not_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        hooks = Hooks()
        async with led(tmp_path, hooks) as partition:
            deletion = await begin(partition, hooks)
            reports(partition, 2, 7)
            hooks.alive.discard(3)
            partition.check_low_watermark()
            assert await deletion == 7

    asyncio.run(run())


def test_who_leads_no_more_cannot_say_that_it_is_done(tmp_path: Path) -> None:
    async def run() -> None:
        hooks = Hooks()
        async with led(tmp_path, hooks) as partition:
            deletion = await begin(partition, hooks)
            partition.assign(assignment(2, leader=2))
            with pytest.raises(RequestError) as refused:
                await deletion
            assert refused.value.code == ErrorCode.not_leader_or_follower

    asyncio.run(run())


def test_a_client_that_does_not_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its time is up: the records are gone here, and what followers report later finds nobody waiting."""

    async def run() -> None:
        hooks = Hooks()
        async with led(tmp_path, hooks) as partition:
            deletion = await begin(partition, hooks)
            deletion.cancel()
            await asyncio.wait((deletion,))
            for peer in (2, 3):
                reports(partition, peer, 7)
            assert partition.low_watermark == 7

    asyncio.run(run())
