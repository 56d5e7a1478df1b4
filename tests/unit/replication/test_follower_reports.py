"""A leader's side of a stream: what it sends its followers out of a log that does not stand still."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import cast

import pytest

from chronik.links import frames
from chronik.links.frames import FrameType
from chronik.links.link import Link
from chronik.metadata.topic_config import TopicConfig
from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.model import ErrorCode, RequestError
from chronik.replication.feed import FollowerCursor, FollowerFeed
from chronik.replication.follower_reports import FollowerReports
from chronik.replication.manager import log_config
from chronik.replication.partition import Partition
from chronik.replication.partitions import Partitions
from chronik.replication.propagation import SAMPLE_SECONDS
from chronik.storage import reading
from chronik.storage.store import LogStore
from tests.unit.replication.support import Replicas, context, put
from tests.unit.storage.support import append, append_durably, open_orders, opened

FOLLOWER = 2


class Follower:
    """The far end of a link: answers as a follower does and hears what the leader sends."""

    peer_id = FOLLOWER
    is_writable = True

    def __init__(self, links: FollowerReports, feed: FollowerFeed, partition: Partition) -> None:
        self.links = links
        self.feed = feed
        self.partition = partition
        self.outbox = self
        self.heard: asyncio.Queue[int] = asyncio.Queue()
        self.samples: list[int] = []

    @property
    def cursor(self) -> FollowerCursor:
        return self.feed.streams[FOLLOWER].cursors[self.partition]

    def send(self, frame: bytes, body: object = ()) -> None:
        type_ = frames.read(memoryview(frame))[0].type
        self.heard.put_nowait(type_)
        if type_ == FrameType.WATERMARK:
            self.samples.append(frames.decode_sample(memoryview(frame)))

    def ack(self, end_offset: int, sample: int = 0) -> None:
        topic_id, epoch = self.partition.log.topic_id_bytes, self.partition.leader_epoch
        frame = frames.bounds_frame(FrameType.ACK, topic_id, 0, epoch, end_offset, 0, sample)
        self.links.on_frame(cast(Link, self), memoryview(frame))

    def say(self, type_: FrameType, body: bytes = b"") -> None:
        head = frames.head(type_, self.partition.log.topic_id_bytes, 0, self.partition.leader_epoch)
        self.links.on_frame(cast(Link, self), memoryview(head + body))

    async def hears(self, type_: FrameType) -> None:
        async with asyncio.timeout(60):
            while await self.heard.get() != type_:
                pass


def leading(store: LogStore, window_bytes: int = 1_000_000) -> Follower:
    partitions = Partitions()
    feed = FollowerFeed(window_bytes=window_bytes, address_of=lambda node: f"host{node}:9291")
    partition = Replicas(store, context(feed=feed)).add("orders")
    partitions.add(partition)
    nodes = (1, FOLLOWER)
    partition.assign(
        Assignment(partition=0, replicas=nodes, isr=nodes, leader=1, leader_epoch=1, partition_epoch=1)
    )
    far = Follower(FollowerReports(partitions=partitions, feed=feed), feed, partition)
    far.links.on_open(cast(Link, far))
    return far


async def opened_by_leader(store: LogStore, window_bytes: int = 1_000_000) -> Follower:
    """One that has said that its log is empty."""
    follower = leading(store, window_bytes)
    await follower.hears(FrameType.OPEN)
    follower.say(FrameType.STATE, frames.encode_position(frames.LogPosition(0, 0, [])))
    return follower


async def test_a_follower_whose_next_batch_is_gone_is_asked_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's start may pass a slow follower: that ends neither its stream nor the others'."""
    async with opened(tmp_path) as (store, _):
        follower = await opened_by_leader(store)
        await follower.hears(FrameType.START)

        def gone(*_: object) -> None:
            raise RequestError(ErrorCode.offset_out_of_range, "the log starts later now")

        with monkeypatch.context() as patched:
            patched.setattr(reading, "read_run_now", gone)
            put(follower.partition, (b"key", b"value"), now_ms=1)
            follower.feed.appended(follower.partition)
            follower.feed._feed_all()
        await follower.hears(FrameType.OPEN)
        follower.say(FrameType.STATE, frames.encode_position(frames.LogPosition(0, 0, [])))
        await follower.hears(FrameType.DATA)


async def test_a_full_window_holds_batches_back_and_skips_none(tmp_path: Path) -> None:
    """T11: each acknowledgement lets the next ones through, in order, though nothing is appended any more."""
    async with opened(tmp_path) as (store, _):
        follower = await opened_by_leader(store, window_bytes=1)
        await follower.hears(FrameType.START)
        for _ in range(5):
            put(follower.partition, (b"key", b"value"), now_ms=1)
        follower.feed.appended(follower.partition)
        await store.wal.drained()
        for end_offset in range(1, 6):
            await follower.hears(FrameType.DATA)
            assert follower.cursor.next_offset == end_offset, "one batch fills the window"
            follower.ack(end_offset)
        assert follower.partition.high_watermark == 5
        assert follower.cursor.in_flight_bytes == 0


async def write(store: LogStore, follower: Follower, offset: int) -> None:
    """A record that both have on disk, so that the watermark moves."""
    put(follower.partition, (b"key", b"value"), now_ms=1)
    follower.feed.appended(follower.partition)
    await follower.hears(FrameType.DATA)
    await store.wal.drained()
    follower.ack(offset + 1)
    await follower.hears(FrameType.WATERMARK)


async def test_how_soon_a_follower_knows_the_watermark_is_sampled(tmp_path: Path) -> None:
    """S25. Every move while little happens, else one in a while; counted when the follower has it."""
    async with opened(tmp_path) as (store, _):
        follower = await opened_by_leader(store)
        await follower.hears(FrameType.WATERMARK)  # that of an empty log
        follower.samples.clear()
        propagation = follower.feed.propagation
        propagation.next_at = 0.0
        await write(store, follower, 0)
        assert propagation.next_at <= asyncio.get_running_loop().time() + SAMPLE_SECONDS
        propagation.next_at = math.inf
        await write(store, follower, 1)
        propagation.next_at = 0.0
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


async def test_a_watermark_goes_with_the_next_batches_and_soon_without_any(tmp_path: Path) -> None:
    """One message less for each follower and round; but none is left in the dark when nothing follows."""
    async with opened(tmp_path) as (store, _):
        follower = leading(store)
        await follower.hears(FrameType.OPEN)
        follower.say(FrameType.STATE, frames.encode_position(frames.LogPosition(0, 0, [])))
        await follower.hears(FrameType.WATERMARK)
        follower.feed.propagation.next_at = math.inf  # no samples
        for number in range(3):
            put(follower.partition, (b"key", b"value"), now_ms=1)
            follower.feed.appended(follower.partition)
            await follower.hears(FrameType.DATA)
            await store.wal.drained()
            follower.ack(number + 1)
            assert follower.partition.high_watermark == number + 1
            assert follower.heard.empty(), "the next batches will tell it"
        cursor = follower.cursor
        assert cursor.sent_watermark == 2
        cursor.is_reading = True  # a read from disk tells nothing by itself
        await follower.hears(FrameType.WATERMARK)
        assert cursor.sent_watermark == 3


async def test_a_run_begins_with_the_whole_batch_in_which_the_log_starts(tmp_path: Path) -> None:
    """Out of files too: only whole batches can be sent, and a follower that starts anew needs this one."""
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        append(log, b"a", b"b", b"c")
        await append_durably(store, log, b"d")
        await store.flusher.flushed()
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        assert not log.tail
        await log.advance_start(2)
        chunk = await reading.read_run(log, 0, 1_000)
        assert chunk.next_offset == 4
        with pytest.raises(RequestError):
            await reading.read_run(log, 1, 1_000)
        with pytest.raises(RequestError):
            await reading.read(log, 0, 1_000, 4)


async def test_a_follower_that_refuses_again_and_again_is_asked_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others open it meanwhile (a look at what lags, a new link): no refusal begins a row of its own."""
    waiting: list[object] = []

    class Loop:
        def call_later(self, _seconds: float, work: object, *_: object) -> None:
            waiting.append(work)

        def time(self) -> float:
            return 0.0

    async with opened(tmp_path) as (store, _):
        follower = leading(store)
        monkeypatch.setattr(follower.feed, "_loop", Loop())
        for _ in range(3):
            follower.say(FrameType.REFUSE)
            follower.feed.open(follower.cursor)
        assert waiting == [follower.feed._reopen]
        follower.feed._reopen(follower.cursor)
        follower.say(FrameType.REFUSE)
        assert len(waiting) == 2


@pytest.mark.parametrize(
    ("replicas", "in_sync", "is_taken"),
    [((1,), (1,), True), ((1, 2), (1, 2), True), ((1, 2), (1,), False), ((1, 2, 3), (1, 2), False)],
)
async def test_min_insync_replicas_is_capped_at_the_replication_factor(
    tmp_path: Path, replicas: tuple[int, ...], in_sync: tuple[int, ...], is_taken: bool
) -> None:
    """As Apache Kafka does: a topic of one replica can be written to whatever the cluster's default is."""
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("orders", min_insync_replicas=3)
        partition.assign(Assignment(partition=0, replicas=replicas, isr=in_sync, leader=1, partition_epoch=1))
        if is_taken:
            partition.require_enough_replicas()
        else:
            with pytest.raises(RequestError) as refused:
                partition.require_enough_replicas()
            assert refused.value.code == ErrorCode.not_enough_replicas
            assert str(refused.value).endswith(f"{len(in_sync)} in-sync replicas, needs {len(replicas)}")


async def test_min_insync_replicas_counts_from_the_moment_it_is_changed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("orders", min_insync_replicas=2)
        three = Assignment(partition=0, replicas=(1, 2, 3), isr=(1, 2), leader=1, partition_epoch=1)
        partition.assign(three)
        partition.require_enough_replicas()
        for wanted, is_taken in ((3, False), (1, True)):
            config = TopicConfig.resolve({"min.insync.replicas": str(wanted)})
            partition.reconfigure(config, log_config("orders", config))
            assert partition.lacks_replicas is not is_taken


async def test_a_watermark_that_was_not_told_is_told_by_the_next_check(tmp_path: Path) -> None:
    """S25: a background sync stands behind the event."""
    async with opened(tmp_path) as (store, _):
        follower = await opened_by_leader(store)
        await follower.hears(FrameType.START)
        put(follower.partition, (b"key", b"value"), now_ms=1)
        follower.feed.appended(follower.partition)
        await store.wal.drained()
        await follower.hears(FrameType.DATA)
        follower.ack(1)
        assert follower.partition.high_watermark == 1
        follower.feed._unsent_watermarks.clear()  # the event is lost
        follower.feed._send_watermarks()
        assert follower.cursor.sent_watermark == 0
        follower.partition.check_followers(asyncio.get_running_loop().time(), 10.0)
        follower.feed._send_watermarks()
        assert follower.cursor.sent_watermark == 1


async def test_the_log_says_who_the_followers_are_and_who_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S10: with addresses, also when one goes."""
    caplog.set_level("DEBUG", "chronik.replication.feed")
    async with opened(tmp_path) as (store, _):
        partition = leading(store).partition
        for epoch, replicas in enumerate([(1, FOLLOWER, 5), (1, 5), (1, 5)], start=2):
            partition.assign(
                Assignment(
                    partition=0, replicas=replicas, isr=(1,), leader=1, leader_epoch=1, partition_epoch=epoch
                )
            )
    assert [record.getMessage() for record in caplog.records] == [
        f"Updated followers for orders-0: [host{FOLLOWER}:9291] (was: None)",
        f"Updated followers for orders-0: [host{FOLLOWER}:9291, host5:9291] (was: [host{FOLLOWER}:9291])",
        f"Updated followers for orders-0: [host5:9291] (was: [host{FOLLOWER}:9291, host5:9291])",
    ]
