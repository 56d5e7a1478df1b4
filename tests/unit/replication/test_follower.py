"""A follower's side of a stream: what it answers its leader, with the disk in every state."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from chronik.links import frames
from chronik.links.frames import FrameType
from chronik.links.link import Link
from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.records.batch import headers
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.ack_sender import AckSender
from chronik.replication.follower import FollowerLinks
from chronik.replication.partition import Partition
from chronik.replication.partitions import Partitions
from chronik.storage.disk import RealDisk, RealFile
from chronik.storage.store import LogStore
from tests.unit.replication.support import Replicas, context
from tests.unit.storage.support import opened, too_many_files

LEADER = 2


class Leader:
    """The far end of a link: says what a leader says and hears what the follower answers."""

    def __init__(self, side: FollowerLinks, partition: Partition, peer_id: int = LEADER) -> None:
        self.peer_id = peer_id
        self.outbox = self
        self.side = side
        self.partition = partition
        self.heard: list[int] = []
        self.acked: frames.LogBounds | None = None
        self.samples: list[int] = []
        self.is_read = True
        self._said = asyncio.Event()
        side.on_open(cast(Link, self))

    def send(self, frame: bytes, body: object = ()) -> None:
        self.heard.append(frames.read(memoryview(frame))[0].type)
        if self.heard[-1] == FrameType.ACK:
            _, body = frames.read(memoryview(frame))
            assert isinstance(body, frames.LogBounds)
            self.acked = body
            self.samples.append(frames.decode_sample(memoryview(frame)))
        self._said.set()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    async def something_was_said(self) -> None:
        await self._said.wait()
        self._said.clear()

    def open(self, leader_epoch: int | None = None, partition_epoch: int = 0) -> None:
        self.say(FrameType.OPEN, frames.encode_opening(partition_epoch), leader_epoch)

    def say(self, type_: FrameType, body: bytes = b"", epoch: int | None = None) -> None:
        epoch = self.partition.leader_epoch if epoch is None else epoch
        head = frames.head(type_, self.partition.log.topic_id_bytes, 0, epoch)
        self.side.on_frame(cast(Link, self), memoryview(head + body))

    def feed(self, offset: int) -> None:
        batch = build_batch([Record(key=None, value=b"value", timestamp_ms=1)], base_offset=offset)
        topic_id, epoch = self.partition.log.topic_id_bytes, self.partition.leader_epoch
        frame = frames.data_frame(topic_id, 0, epoch, offset, high_watermark=0, log_start_offset=0)
        self.side.on_frame(cast(Link, self), memoryview(frame + bytes(batch)))

    def tell_bounds(self, high_watermark: int, log_start_offset: int, sample: int = 0) -> None:
        topic_id, epoch = self.partition.log.topic_id_bytes, self.partition.leader_epoch
        frame = frames.bounds_frame(
            FrameType.WATERMARK, topic_id, 0, epoch, high_watermark, log_start_offset, sample
        )
        self.side.on_frame(cast(Link, self), memoryview(frame))


def assign(partition: Partition, leader: int, epoch: int, partition_epoch: int | None = None) -> None:
    nodes = (1, 2, 3)
    new = Assignment(
        partition=0,
        replicas=nodes,
        isr=nodes,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch if partition_epoch is None else partition_epoch,
    )
    partition.assign(new)


def followed(store: LogStore) -> Leader:
    """A partition of this node, and the leader that has opened it."""
    partitions, acks = Partitions(), AckSender()
    partition = Replicas(store, context(acks=acks)).add("orders")
    partitions.add(partition)
    assign(partition, LEADER, 1)
    pressures = (store.wal.pressure, store.flusher)
    links = FollowerLinks(partitions=partitions, acks=acks, pressures=pressures, now_ms=lambda: 1)
    leader = Leader(links, partition)
    leader.open()
    leader.say(FrameType.START, frames.encode_start(frames.Start(0, False)))
    return leader


async def test_a_disk_that_failed_asks_to_be_fed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent is gone. When nothing else is written nobody would notice: the ISR would stay short."""
    async with opened(tmp_path) as (store, _):
        leader = followed(store)
        leader.feed(0)
        await store.wal.drained()
        await asyncio.sleep(0)  # acknowledgements leave at the end of the turn
        assert leader.heard[0] == FrameType.STATE
        assert leader.heard[-1] == FrameType.ACK

        def bad_sync(_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(RealFile, "sync", bad_sync)
            leader.feed(1)
            await store.wal.drained()
        assert leader.partition.log.log_end_offset == 1
        assert leader.heard[-1] == FrameType.REFUSE
        assert leader.partition.feeder is None


async def test_files_that_cannot_be_opened_are_refused_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log opens its files with the first batch after a start."""
    async with opened(tmp_path) as (store, _):
        followed(store).feed(0)
    async with opened(tmp_path) as (store, _):
        leader = followed(store)
        leader.say(FrameType.START, frames.encode_start(frames.Start(1, False)))

        with monkeypatch.context() as patched:
            patched.setattr(RealDisk, "list", too_many_files)
            leader.feed(1)
        assert leader.heard[-1] == FrameType.REFUSE
        assert leader.partition.log.log_end_offset == 1
        leader.open()
        leader.say(FrameType.START, frames.encode_start(frames.Start(1, False)))
        leader.feed(1)
        await store.wal.drained()
        await asyncio.sleep(0)  # acknowledgements leave at the end of the turn
        assert leader.acked is not None
        assert leader.acked.end_offset == 2


async def test_a_start_that_the_leader_tells_is_followed_without_new_records(tmp_path: Path) -> None:
    """DeleteRecords on an idle partition: the follower cuts its log at once, and says when it has."""
    async with opened(tmp_path) as (store, _):
        leader = followed(store)
        for offset in range(3):
            leader.feed(offset)
        # Not on disk yet, so not below this replica's watermark: the start has to wait for that.
        leader.tell_bounds(3, 2)
        assert leader.partition.log_start_offset == 0
        async with asyncio.timeout(60):
            while leader.acked != frames.LogBounds(3, 2):
                await leader.something_was_said()
        assert leader.partition.log_start_offset == 2
        assert leader.partition.high_watermark == 3


async def test_the_number_of_a_watermark_goes_back_once_the_watermark_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        leader = followed(store)
        leader.feed(0)
        leader.tell_bounds(1, 0, 5)
        assert leader.partition.high_watermark == 0, "the record is not on disk yet"
        await store.wal.drained()
        leader.tell_bounds(1, 0)
        leader.tell_bounds(1, 0, 6)
        assert leader.partition.high_watermark == 1
        await asyncio.sleep(0)  # acknowledgements leave at the end of the turn
        assert [sample for sample in leader.samples if sample] == [6]


@pytest.mark.parametrize("is_deposed_first", [True, False])
async def test_an_early_opening_is_not_displaced_by_one_of_a_deposed_leader(
    tmp_path: Path, is_deposed_first: bool
) -> None:
    """Both come before the metadata that tells who is right: each must hear something, or waits for ever."""
    async with opened(tmp_path) as (store, _):
        deposed = followed(store)
        leader = Leader(deposed.side, deposed.partition, peer_id=3)
        openings = [(deposed, 2), (leader, 3)]
        for one, epoch in openings if is_deposed_first else reversed(openings):
            one.open(epoch)
        assign(deposed.partition, leader=3, epoch=3)
        deposed.side.partition_assigned(deposed.partition)
        assert leader.heard == [FrameType.STATE]
        assert deposed.heard[-1] == FrameType.REFUSE
        await deposed.side.stop()


async def test_a_replica_that_is_to_go_does_not_answer_for_the_one_that_comes_after_it(
    tmp_path: Path,
) -> None:
    """Moved away and back in one leader epoch, as its leader knows already: what it has will be deleted."""
    async with opened(tmp_path) as (store, _):
        leader = followed(store)
        leader.open(partition_epoch=3)
        assert leader.heard == [FrameType.STATE]
        assign(leader.partition, LEADER, 1, partition_epoch=2)
        leader.side.partition_assigned(leader.partition)
        assert leader.heard == [FrameType.STATE]
        assign(leader.partition, LEADER, 1, partition_epoch=3)
        leader.side.partition_assigned(leader.partition)
        assert leader.heard == [FrameType.STATE, FrameType.STATE]
        await leader.side.stop()


async def test_a_leader_is_not_read_from_while_the_wal_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S04: what a slow disk cannot take waits at the leader, not in this node's memory."""
    async with opened(tmp_path) as (store, _):
        leader = followed(store)
        other = Leader(leader.side, leader.partition, peer_id=3)
        monkeypatch.setattr(store.wal._queue, "_entries_max", 3)  # the log's name, two batches
        leader.feed(0)
        assert leader.is_read
        leader.feed(1)
        assert store.wal.pressure.full
        assert not leader.is_read
        assert other.is_read, "it has sent no batches"
        await store.wal.drained()
        assert leader.is_read
        leader.feed(2)
        assert leader.is_read
        assert leader.partition.log.log_end_offset == 3


async def test_a_leader_that_is_gone_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as (store, _):
        leader = followed(store)
        monkeypatch.setattr(store.wal._queue, "_entries_max", 1)
        leader.feed(0)
        assert not leader.is_read
        leader.side.on_closed(cast(Link, leader))
        await store.wal.drained()
        assert not leader.is_read


@pytest.mark.parametrize("configs", [{}, {"flush_ms": "1000"}], ids=["synced", "relaxed"])
async def test_only_a_relaxed_topic_is_cut_below_its_watermark(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    """All in-sync replicas of a relaxed topic may have lost power at once: then the leader has less than what
    was committed. What an earlier leader said must not be believed of the records that come instead."""
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("orders", **configs)
        partition.assign(Assignment(partition=0, replicas=(1, LEADER), isr=(LEADER,), leader=LEADER))
        link = cast(Link, SimpleNamespace(peer_id=LEADER))
        assert partition.follow(link, 0, is_reset=False)
        for offset in range(3):
            batch = build_batch([Record(key=None, value=b"value", timestamp_ms=1)], base_offset=offset)
            partition.log.append_replicated(batch, headers(batch), 1)
        partition.leader_reported(5, 0)
        await store.wal.drained()
        assert partition.high_watermark == 3
        is_relaxed = bool(configs)
        assert partition.follow(link, 2, is_reset=False) is is_relaxed
        if is_relaxed:
            batch = build_batch([Record(key=None, value=b"other", timestamp_ms=1)], base_offset=2)
            partition.log.append_replicated(batch, headers(batch), 1)
            await store.wal.drained()
        assert partition.high_watermark == (2 if is_relaxed else 3)
        assert partition.log_end_offset == 3


def elected(leader: int, isr: tuple[int, ...], epoch: int, partition_epoch: int) -> Assignment:
    return Assignment(
        partition=0,
        replicas=(1, 2, 3),
        isr=isr,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
    )


async def told(store: LogStore, partition: Partition, link: Link, high_watermark: int) -> None:
    """Three records of its leader are on this disk, and the leader says how far they are committed."""
    assert partition.follow(link, 0, is_reset=False)
    for offset in range(3):
        append(partition, offset)
    partition.leader_reported(high_watermark, 0)
    await store.wal.drained()


def append(partition: Partition, offset: int) -> None:
    batch = build_batch([Record(key=None, value=b"value", timestamp_ms=1)], base_offset=offset)
    partition.log.append_replicated(batch, headers(batch), 1)


@pytest.mark.parametrize(
    ("known_isr", "partition_epoch", "may_lack_records"),
    [((2,), 2, True), ((2, 3), 2, False), ((2, 3), 5, True)],
    ids=["unclean", "clean", "changes were missed"],
)
async def test_after_an_unclean_election_committed_records_may_go(
    tmp_path: Path, known_isr: tuple[int, ...], partition_epoch: int, may_lack_records: bool
) -> None:
    """Who saw more committed than the new leader has would else stay away until it is started again."""
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("orders")
        partition.assign(elected(2, known_isr, 1, 1))
        await told(store, partition, cast(Link, SimpleNamespace(peer_id=2)), high_watermark=5)
        assert partition.high_watermark == 3
        partition.assign(elected(3, (3,), 2, partition_epoch))
        link = cast(Link, SimpleNamespace(peer_id=3))
        assert partition.follow(link, 2, is_reset=False) is may_lack_records
        if may_lack_records:
            append(partition, 2)
            await store.wal.drained()
            assert partition.high_watermark == 2, "an earlier leader spoke of another record"
            partition.assign(elected(3, (2, 3), 2, partition_epoch + 1))
            partition.assign(elected(2, (2, 3), 3, partition_epoch + 2))
            assert not partition.follow(link, 1, is_reset=False), "that is over once a leader was followed"
        assert partition.log_end_offset == 3


async def test_who_led_out_of_sync_forgets_what_it_had_heard(tmp_path: Path) -> None:
    """What an earlier leader said is committed is gone. Other records come in its place."""
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("orders")
        partition.assign(elected(2, (2,), 1, 1))
        await told(store, partition, cast(Link, SimpleNamespace(peer_id=2)), high_watermark=5)
        partition.assign(elected(1, (1,), 2, 2))
        partition.assign(elected(1, (1, 3), 2, 3))
        partition.assign(elected(3, (1, 3), 3, 4))
        assert partition.follow(cast(Link, SimpleNamespace(peer_id=3)), 3, is_reset=False)
        append(partition, 3)
        await store.wal.drained()
        assert partition.high_watermark == 3
