"""Deleting records on a leader: done when every live replica has done it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.model import ErrorCode, NodeId, RequestError
from chronik.replication.partition import Partition
from tests.unit.replication.support import Alone, Replicas, context, put
from tests.unit.storage.support import opened

WRITTEN_MS = 1_700_000_000_000
NOW_MS = WRITTEN_MS + 3 * 3_600_000 + 20 * 60_000


class Around(Alone):
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
async def led(folder: Path, around: Around) -> AsyncIterator[Partition]:
    """A partition with ten records, led here and followed by two nodes that have them all."""
    async with opened(folder) as (store, _):
        partition = Replicas(store, context(around)).add("orders")
        partition.assign(assignment(1))
        for number in range(10):
            put(partition, (b"key", b"%d" % number), now_ms=WRITTEN_MS)
        await store.wal.drained()
        for peer in (2, 3):
            reports(partition, peer, 0)
        assert partition.high_watermark == 10
        around.told.clear()
        async with asyncio.timeout(60):
            yield partition


async def begin(partition: Partition, around: Around) -> asyncio.Future[int]:
    """Delete up to 7; goes on when the leader has done it and followers are about to hear of it."""
    deletion = asyncio.ensure_future(partition.delete_records(7, NOW_MS))
    await around.told.wait()
    assert partition.log_start_offset == 7
    return deletion


def reports(partition: Partition, peer: NodeId, log_start_offset: int) -> None:
    partition.follower_acknowledged(peer, 10, log_start_offset, now=0.0)


async def test_it_ends_when_the_last_live_replica_has_followed(tmp_path: Path) -> None:
    around = Around()
    async with led(tmp_path, around) as partition:
        deletion = await begin(partition, around)
        reports(partition, 2, 7)
        await asyncio.sleep(0)
        assert not deletion.done()
        assert partition.low_watermark == 0
        reports(partition, 3, 7)
        assert await deletion == 7


async def test_a_dead_replica_is_not_waited_for(tmp_path: Path) -> None:
    around = Around()
    async with led(tmp_path, around) as partition:
        deletion = await begin(partition, around)
        reports(partition, 2, 7)
        around.alive.discard(3)
        partition.check_followers(now=0.0, lag_seconds_max=1.0)
        assert await deletion == 7


async def test_who_leads_no_more_cannot_say_that_it_is_done(tmp_path: Path) -> None:
    around = Around()
    async with led(tmp_path, around) as partition:
        deletion = await begin(partition, around)
        partition.assign(assignment(2, leader=2))
        with pytest.raises(RequestError) as refused:
            await deletion
        assert refused.value.code == ErrorCode.not_leader_or_follower


async def test_a_client_that_does_not_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its time is up: the records are gone here, and what followers report later finds nobody waiting."""
    around = Around()
    async with led(tmp_path, around) as partition:
        deletion = await begin(partition, around)
        deletion.cancel()
        await asyncio.wait((deletion,))
        for peer in (2, 3):
            reports(partition, peer, 7)
        assert partition.low_watermark == 7


async def test_the_log_says_how_many_how_old_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("orders")
        for number in range(10):
            put(partition, (b"key", b"%d" % number), now_ms=WRITTEN_MS)
        put(partition, (b"key", b"from 1970"), now_ms=1)
        await store.wal.drained()
        for offset in (3, 3, 7, 11):
            await partition.delete_records(offset, NOW_MS)
    assert [record.getMessage() for record in caplog.records if "deleting" in record.getMessage()] == [
        "orders-0: deleting 3 offsets, 0 to 2, the youngest 3 h 20 min old, by DeleteRecords",
        "orders-0: deleting 4 offsets, 3 to 6, the youngest 3 h 20 min old, by DeleteRecords",
        "orders-0: deleting 4 offsets, 7 to 10, of unknown age, by DeleteRecords",
    ]


async def test_what_cannot_be_read_can_be_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("orders")
        put(partition, (b"key", b"value"), now_ms=WRITTEN_MS)
        await store.wal.drained()
        await store.flusher.flushed()
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("orders")
        await partition.log.load()
        path = partition.log.segments[0].path
        path.write_bytes(b"\xff" * path.stat().st_size)
        assert await partition.delete_records(1, NOW_MS) == 1
    assert "orders-0: deleting 1 offsets, 0 to 0, of unknown age, by DeleteRecords" in caplog.messages
