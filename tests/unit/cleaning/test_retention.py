"""Retention over the partitions of a node (L03)."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from chronik.records.batch import check_batch
from chronik.replication.partition import Partition
from chronik.storage.disk import IoThread
from tests.unit.replication.support import Clock, Replicas, cleaner, put
from tests.unit.storage.support import opened, read_values

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def fill(partition: Partition, count: int, clock: Clock) -> None:
    for i in range(count):
        put(partition, (b"key-%d" % i, b"v" * 50), now_ms=clock.now_ms)


async def offsets(partition: Partition) -> list[int]:
    return [offset for offset, _ in await read_values(partition.log)]


async def test_every_topic_has_its_own_retention(tmp_path: Path) -> None:
    """T23: not one fixed topic, and internal ones too."""
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        small = {"segment_bytes": 1_000, "file_delete_delay_ms": 0}
        short = replicas.add("short", retention_ms=HOUR_MS, **small)
        second = replicas.add("short", 1, retention_ms=HOUR_MS, **small)
        tight = replicas.add("tight", retention_ms=-1, retention_bytes=3_000, **small)
        kept = replicas.add("kept", retention_ms=-1, **small)
        compacted = replicas.add("compacted", cleanup_policy="compact", retention_ms=HOUR_MS, **small)
        both = replicas.add("both", cleanup_policy="compact,delete", retention_ms=HOUR_MS, **small)
        internal = replicas.add("__internal", retention_ms=HOUR_MS, **small)
        for partition in replicas.all():
            fill(partition, 50, clock)
        clock.now_ms += 2 * HOUR_MS
        for partition in replicas.all():
            fill(partition, 5, clock)
        await store.wal.drained()
        await store.flusher.flushed()
        await cleaner(replicas, clock).retain()
        for partition in (short, second, both, internal):
            found = await offsets(partition)
            assert 50 not in range(partition.log_start_offset)
            assert found == list(range(partition.log_start_offset, 55))
            assert partition.log_start_offset >= 40, partition.tp
        assert len(await offsets(tight)) >= 20
        assert 3_000 <= tight.log.size_bytes < 4_200
        assert await offsets(kept) == await offsets(compacted) == list(range(55))
        await store.checkpoint()
        for partition in replicas.all():
            on_disk = sorted(path.name for path in partition.log.directory.glob("*.log"))
            assert on_disk == [segment.path.name for segment in partition.log.segments]


async def test_an_idle_log_expires_to_the_last_record_and_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, crash=True) as (store, _):
        replicas = Replicas(store)
        idle = replicas.add("idle", retention_ms=HOUR_MS)
        fill(idle, 10, clock)
        await store.wal.drained()
        await store.flusher.flushed()
        await store.checkpoint()
        clock.now_ms += HOUR_MS
        await cleaner(replicas, clock).retain()
        assert idle.log_start_offset == 0
        clock.now_ms += 1
        await cleaner(replicas, clock).retain()
        assert (idle.log_start_offset, idle.log_end_offset) == (10, 10)
        fill(idle, 1, clock)
        await store.wal.drained()
    async with opened(tmp_path) as (store, _):
        again = Replicas(store).add("idle", retention_ms=HOUR_MS)
        assert (again.log_start_offset, again.log_end_offset) == (10, 11)
        assert await offsets(again) == [10]


async def test_nothing_above_the_watermark_goes(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", retention_ms=HOUR_MS, segment_bytes=1_000)
        partition.leader_id = 2  # a follower, told of a watermark far behind its end
        fill(partition, 50, clock)
        await store.wal.drained()
        partition.leader_reported(20, 0)
        clock.now_ms += 2 * HOUR_MS
        await cleaner(replicas, clock).retain()
        assert 0 < partition.log_start_offset <= 20
        assert partition.log_end_offset == 50


async def test_a_round_frees_the_disk_by_itself(tmp_path: Path) -> None:
    """L03: recovery needs the segment of the last checkpoint, so the round makes a newer one."""
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        tight = replicas.add(
            "tight", retention_ms=-1, retention_bytes=2_000, segment_bytes=1_000, file_delete_delay_ms=0
        )
        fill(tight, 50, clock)
        await store.wal.drained()
        await store.flusher.flushed()
        before = len(list(tight.log.directory.glob("*.log")))
        await cleaner(replicas, clock).retain()
        left = sorted(path.name for path in tight.log.directory.glob("*.log"))
        assert left == [segment.path.name for segment in tight.log.segments]
        assert len(left) < before
        checkpoint = store.checkpoint_age()
        await asyncio.sleep(0.01)
        await cleaner(replicas, clock).retain()
        assert store.checkpoint_age() > checkpoint, "nothing waited, so no checkpoint was due"


async def test_delete_records_and_retention_together(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, crash=True) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", retention_ms=HOUR_MS, segment_bytes=1_000, file_delete_delay_ms=0)
        fill(partition, 100, clock)
        clock.now_ms += 2 * HOUR_MS
        fill(partition, 10, clock)
        await store.wal.drained()
        await store.flusher.flushed()
        deletion = partition.delete_records(35, clock.now_ms)
        results = await asyncio.gather(deletion, cleaner(replicas, clock).retain())
        assert results[0] >= 35
        start = partition.log_start_offset
        assert 90 <= start <= 100
        assert await partition.delete_records(5, clock.now_ms) == start  # never back
        assert await offsets(partition) == list(range(start, 110))
    async with opened(tmp_path) as (store, report):
        partition = Replicas(store).add("t", segment_bytes=1_000)
        assert partition.log_start_offset == start
        assert await offsets(partition) == list(range(start, 110))
        assert report.gaps == []


async def test_one_broken_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        broken = replicas.add("broken", retention_ms=HOUR_MS)
        sound = replicas.add("sound", retention_ms=HOUR_MS)
        for partition in (broken, sound):
            fill(partition, 10, clock)
        await store.wal.drained()

        class BrokenDisk:
            async def run(self, io_thread: object, work: object) -> None:
                raise OSError("the device is gone")

        broken.log.disk = BrokenDisk()
        clock.now_ms += 2 * HOUR_MS
        await cleaner(replicas, clock).retain()
        assert broken.log_start_offset == 0
        assert sound.log_start_offset == 10
        broken.log.disk = store.disk


async def test_idle_producers_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t")
        put(partition, (b"k", b"v"), now_ms=clock.now_ms, producer_id=7, producer_epoch=0, base_sequence=0)
        await store.wal.drained()
        tidy = cleaner(replicas, clock, producer_id_expiration_ms=1_000)
        await tidy.retain()
        assert partition.log.producers is not None
        assert partition.log.producers.get(7) is not None
        clock.now_ms += 1_000
        await tidy.retain()
        assert partition.log.producers.get(7) is None


async def test_the_cleaner_runs_by_itself_and_stops(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", retention_ms=HOUR_MS)
        fill(partition, 10, clock)
        await store.wal.drained()
        clock.now_ms += 2 * HOUR_MS
        tidy = cleaner(replicas, clock, retention_check_interval_ms=1)
        tidy.start()
        async with asyncio.timeout(5):
            while partition.log_start_offset < 10:
                await store.disk.run(IoThread.BACKGROUND, lambda: None)
        await tidy.stop()


def deletions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "deleting" in message]


async def test_the_log_says_how_many_records_go_how_old_they_are_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(NOW_MS)
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        by_time = replicas.add("time", retention_ms=HOUR_MS)
        by_size = replicas.add("size", retention_ms=-1, retention_bytes=1, segment_bytes=1_000)
        by_both = replicas.add("both", retention_ms=HOUR_MS, retention_bytes=1, segment_bytes=1_000)
        kept = replicas.add("kept", retention_ms=30 * 24 * HOUR_MS)
        for partition in (by_time, by_size, by_both, kept):
            fill(partition, 10, clock)
        clock.now_ms += 25 * HOUR_MS
        for partition in (by_size, by_both):
            fill(partition, 10, clock)
        clock.now_ms += 65_000
        await store.wal.drained()
        await store.flusher.flushed()
        await cleaner(replicas, clock).retain()
        size_start, both_start = by_size.log_start_offset, by_both.log_start_offset
        assert 10 < size_start < 20
        assert 10 < both_start < 20
    assert deletions(caplog) == [
        f"time-0: deleting 10 offsets, 0 to 9, the youngest 1 d 1 h old, by retention.ms={HOUR_MS}",
        f"size-0: deleting {size_start} offsets, 0 to {size_start - 1}, the youngest 1 min 5 s old, "
        "by retention.bytes=1",
        f"both-0: deleting {both_start} offsets, 0 to {both_start - 1}, the youngest 1 min 5 s old, "
        f"by retention.ms={HOUR_MS} and retention.bytes=1",
    ]


LIBRDKAFKA_UNDATED = bytes.fromhex(
    "00000000000000000000004100000000023e6ae02d000000000001ffffffffffffffff0000000000000000ffffffffffffffff"
    "ffffffffffff000000020e000000010230000e00000201023100"
)
"""What librdkafka sends for two records with timestamp -1: base_timestamp -1, max_timestamp 0."""


async def test_batches_that_an_older_version_stored_as_of_1970_stay_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, week_ms = Clock(NOW_MS), 7 * 24 * HOUR_MS
    async with opened(tmp_path) as (store, _):
        log = Replicas(store).add("old").log
        batch = bytearray(LIBRDKAFKA_UNDATED)
        log.append(
            memoryview(batch), check_batch(batch), 0, clock.now_ms
        )  # as it came, unlike Partition.append
        path = log.segments[0].path
    assert path.read_bytes() == LIBRDKAFKA_UNDATED, "as an older version left it"
    os.utime(path, ns=(0, clock.now_ms * 1_000_000))
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("old", retention_ms=week_ms)
        tidy = cleaner(replicas, clock)
        for _ in range(3):
            await tidy.retain()
            clock.now_ms += week_ms // 3
        assert partition.log_start_offset == 0
        assert await read_values(partition.log) == [(0, b"0"), (1, b"1")]
        told = (
            "old-0: 1 of 1 segments have no timestamp after 1970: for retention.ms they age from their "
            "last write"
        )
        assert caplog.messages.count(told) == 1
        clock.now_ms += 2_000
        await tidy.retain()
        assert partition.log_start_offset == 2
    assert deletions(caplog) == [
        "old-0: deleting 2 offsets, 0 to 1, without timestamps, last written 7 d 0 h ago, "
        f"by retention.ms={week_ms}"
    ]
