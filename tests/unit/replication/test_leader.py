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
from chronik.replication.propagation import SAMPLE_SECONDS
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
        self.samples: list[int] = []

    def send(self, frame: bytes, body: object = ()) -> None:
        type_ = frames.read_head(memoryview(frame)).type
        self.heard.put_nowait(type_)
        if type_ == FrameType.WATERMARK:
            self.samples.append(frames.decode_sample(memoryview(frame)))

    def ack(self, end_offset: int, sample: int = 0) -> None:
        self.say(FrameType.ACK, frames.encode_bounds(frames.Bounds(end_offset, 0), sample))

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


async def opened_by_leader(store: LogStore) -> Follower:
    """One that has said that its log is empty."""
    follower = leading(store)
    await follower.hears(FrameType.OPEN)
    follower.say(FrameType.STATE, frames.encode_position(frames.LogPosition(0, 0, [])))
    return follower


def test_a_follower_whose_next_batch_is_gone_is_asked_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's start may pass a slow follower: that ends neither its stream nor the others'."""

    async def run() -> None:
        async with opened(tmp_path) as (store, _):
            follower = await opened_by_leader(store)
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


async def write(store: LogStore, follower: Follower, offset: int) -> None:
    """A record that both have on disk, so that the watermark moves."""
    put(follower.partition, (b"key", b"value"), now_ms=1)
    follower.side.appended(follower.partition)
    await follower.hears(FrameType.DATA)
    await store.wal.drained()
    follower.ack(offset + 1)
    await follower.hears(FrameType.WATERMARK)


def test_how_soon_a_follower_knows_the_watermark_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S25. Every move while little happens, else one in a while; counted when the follower has it."""

    async def run() -> None:
        async with opened(tmp_path) as (store, _):
            follower = await opened_by_leader(store)
            await follower.hears(FrameType.WATERMARK)  # that of an empty log
            follower.samples.clear()
            propagation = follower.side.propagation
            monkeypatch.setattr(propagation, "_now", lambda: now)
            now = propagation._next_at
            await write(store, follower, 0)
            await write(store, follower, 1)
            now += SAMPLE_SECONDS
            await write(store, follower, 2)
            samples = [sample for sample in follower.samples if sample]
            assert len(samples) == 2
            assert follower.samples == [samples[0], 0, samples[1]]
            assert not propagation.seconds, "nobody has said that it has a watermark"
            for sample in samples:
                follower.ack(3, sample)
            assert propagation.seconds[FOLLOWER].count == 2
            follower.ack(3, 4_711)
            assert propagation.seconds[FOLLOWER].count == 2, "nobody asked for that number"

    asyncio.run(run())


def test_a_watermark_goes_with_the_next_batches_and_soon_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message less for each follower and round; but none is left in the dark when nothing follows."""

    async def run() -> None:
        async with opened(tmp_path) as (store, _):
            follower = leading(store)
            await follower.hears(FrameType.OPEN)
            follower.say(FrameType.STATE, frames.encode_position(frames.LogPosition(0, 0, [])))
            await follower.hears(FrameType.WATERMARK)
            monkeypatch.setattr(follower.side.propagation, "_now", lambda: 0.0)  # no samples
            for number in range(3):
                put(follower.partition, (b"key", b"value"), now_ms=1)
                follower.side.appended(follower.partition)
                await follower.hears(FrameType.DATA)
                await store.wal.drained()
                follower.ack(number + 1)
                assert follower.partition.high_watermark == number + 1
                assert follower.heard.empty(), "the next batches will tell it"
            progress = follower.partition.followers[FOLLOWER]
            assert progress.told_watermark == 2
            progress.is_reading = True  # a read from disk tells nothing by itself
            await follower.hears(FrameType.WATERMARK)
            assert progress.told_watermark == 3

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


def test_a_follower_that_refuses_again_and_again_is_asked_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others open it meanwhile (a look at what lags, a new link): no refusal begins a row of its own."""
    waiting: list[object] = []

    class Loop:
        def call_later(self, _seconds: float, work: object, *_: object) -> None:
            waiting.append(work)

        def time(self) -> float:
            return 0.0

    async def run() -> None:
        async with opened(tmp_path) as (store, _):
            follower = leading(store)
            monkeypatch.setattr(follower.side, "_loop", Loop())
            progress = follower.partition.followers[FOLLOWER]
            for _ in range(3):
                follower.say(FrameType.REFUSE)
                follower.side._open(follower.partition, progress)
            assert waiting == [follower.side._reopen]
            follower.side._reopen(follower.partition, progress)
            follower.say(FrameType.REFUSE)
            assert len(waiting) == 2

    asyncio.run(run())
