"""A leader's side of a stream: what it sends its followers out of a log that does not stand still."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from chronik.metadata.values import Partition as Assignment
from chronik.model import ErrorCode, RequestError
from chronik.replication import frames
from chronik.replication.follower import FollowerSide
from chronik.replication.frames import FrameType
from chronik.replication.leader import LeaderSide
from chronik.replication.link import Link
from chronik.replication.partition import Partition
from chronik.replication.streams import Replication
from chronik.storage import reading
from chronik.storage.store import LogStore
from tests.unit.replication.support import Replicas, put
from tests.unit.storage.support import append, append_durably, open_orders, opened

FOLLOWER = 2


class Follower:
    """The far end of a link: answers as a follower does and hears what the leader sends."""

    peer_id = FOLLOWER
    writable = True

    def __init__(self, side: LeaderSide, partition: Partition) -> None:
        self.side = side
        self.partition = partition
        self.heard: asyncio.Queue[int] = asyncio.Queue()

    def send(self, frame: bytes, body: object = ()) -> None:
        self.heard.put_nowait(frames.read_head(memoryview(frame)).type)

    def say(self, type_: FrameType, body: bytes = b"") -> None:
        head = frames.head(type_, self.partition.log.topic_id_bytes, 0, self.partition.leader_epoch)
        self.side.on_frame(cast(Link, self), memoryview(head + body))

    async def hears(self, type_: FrameType) -> None:
        async with asyncio.timeout(60):
            while await self.heard.get() != type_:
                pass


def leading(store: LogStore) -> Follower:
    partitions: list[Partition] = []
    side = LeaderSide(
        node_id=1,
        partitions=lambda: partitions,
        find=lambda *_: partitions[0],
        propose_isr=lambda *_: asyncio.sleep(0, result=False),
        is_alive=lambda _: True,
        lag_seconds_max=10.0,
    )
    follower = FollowerSide(node_id=1, find=lambda *_: None, now_ms=lambda: 1)
    partitions.append(Replicas(store, Replication(side, follower)).add("orders"))
    nodes = (1, FOLLOWER)
    partitions[0].assign(
        Assignment(partition=0, replicas=nodes, isr=nodes, leader=1, leader_epoch=1, partition_epoch=1)
    )
    far = Follower(side, partitions[0])
    side.on_open(cast(Link, far))
    return far


def test_a_follower_whose_next_batch_is_gone_is_asked_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's start may pass a slow follower: that ends neither its stream nor the others'."""

    async def run() -> None:
        async with opened(tmp_path) as (store, _):
            follower = leading(store)
            await follower.hears(FrameType.OPEN)
            follower.say(FrameType.STATE, frames.encode_position(frames.LogPosition(0, 0, [])))
            await follower.hears(FrameType.START)

            def gone(*_: object) -> None:
                raise RequestError(ErrorCode.offset_out_of_range, "the log starts later now")

            with monkeypatch.context() as patched:
                patched.setattr(reading, "read_run_now", gone)
                put(follower.partition, (b"key", b"value"), now_ms=1)
                follower.side.appended(follower.partition)
                follower.side._feed_all()
            await follower.hears(FrameType.OPEN)
            follower.say(FrameType.STATE, frames.encode_position(frames.LogPosition(0, 0, [])))
            await follower.hears(FrameType.DATA)

    asyncio.run(run())


def test_a_run_begins_with_the_whole_batch_in_which_the_log_starts(tmp_path: Path) -> None:
    """Out of files too: only whole batches can be sent, and a follower that starts anew needs this one."""

    async def run() -> None:
        async with opened(tmp_path) as (store, _):
            log = open_orders(store)
            append(log, b"a", b"b", b"c")
            await append_durably(store, log, b"d")
            await store.flusher.flushed()
        async with opened(tmp_path) as (store, _):
            log = open_orders(store)
            assert not log.tail
            await log.advance_start(2)
            run = await reading.read_run(log, 0, 1_000)
            assert run.next_offset == 4
            with pytest.raises(RequestError):
                await reading.read_run(log, 1, 1_000)
            with pytest.raises(RequestError):
                await reading.read(log, 0, 1_000, 4)

    asyncio.run(run())
