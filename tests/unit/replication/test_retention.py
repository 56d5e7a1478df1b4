"""Retention over the partitions of a node."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chronik.replication.partition import Partition
from chronik.storage.disk import Lane
from tests.unit.replication.support import Clock, Replicas, cleaner, put
from tests.unit.storage.support import opened, read_values

HOUR_MS = 3_600_000


def fill(partition: Partition, count: int, clock: Clock) -> None:
    for i in range(count):
        put(partition, (b"key-%d" % i, b"v" * 50), now_ms=clock.now_ms)


async def offsets(partition: Partition) -> list[int]:
    return [offset for offset, _ in await read_values(partition.log)]


def test_every_topic_has_its_own_retention(tmp_path: Path) -> None:
    """T23: not one fixed topic, and internal ones too."""

    async def run() -> None:
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

    asyncio.run(run())


def test_an_idle_log_expires_to_the_last_record_and_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
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

    asyncio.run(run())


def test_nothing_above_the_watermark_goes(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with opened(tmp_path) as (store, _):
            replicas = Replicas(store)
            partition = replicas.add("t", retention_ms=HOUR_MS, segment_bytes=1_000)
            partition.leader_id = 2  # a follower, told of a watermark far behind its end
            fill(partition, 50, clock)
            await store.wal.drained()
            partition.on_told_watermark(20)
            clock.now_ms += 2 * HOUR_MS
            await cleaner(replicas, clock).retain()
            assert 0 < partition.log_start_offset <= 20
            assert partition.log_end_offset == 50

    asyncio.run(run())


def test_delete_records_and_retention_together(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with opened(tmp_path, crash=True) as (store, _):
            replicas = Replicas(store)
            partition = replicas.add("t", retention_ms=HOUR_MS, segment_bytes=1_000, file_delete_delay_ms=0)
            fill(partition, 100, clock)
            clock.now_ms += 2 * HOUR_MS
            fill(partition, 10, clock)
            await store.wal.drained()
            await store.flusher.flushed()
            results = await asyncio.gather(partition.delete_records(35), cleaner(replicas, clock).retain())
            assert results[0] >= 35
            start = partition.log_start_offset
            assert 90 <= start <= 100
            assert await partition.delete_records(5) == start  # never back
            assert await offsets(partition) == list(range(start, 110))
        async with opened(tmp_path) as (store, report):
            partition = Replicas(store).add("t", segment_bytes=1_000)
            assert partition.log_start_offset == start
            assert await offsets(partition) == list(range(start, 110))
            assert report.gaps == []

    asyncio.run(run())


def test_one_broken_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with opened(tmp_path) as (store, _):
            replicas = Replicas(store)
            broken = replicas.add("broken", retention_ms=HOUR_MS)
            sound = replicas.add("sound", retention_ms=HOUR_MS)
            for partition in (broken, sound):
                fill(partition, 10, clock)
            await store.wal.drained()

            class BrokenDisk:
                async def run(self, lane: object, work: object) -> None:
                    raise OSError("the device is gone")

            broken.log.disk = BrokenDisk()
            clock.now_ms += 2 * HOUR_MS
            await cleaner(replicas, clock).retain()
            assert broken.log_start_offset == 0
            assert sound.log_start_offset == 10
            broken.log.disk = store.disk

    asyncio.run(run())


def test_idle_producers_are_forgotten(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with opened(tmp_path) as (store, _):
            replicas = Replicas(store)
            partition = replicas.add("t")
            put(
                partition, (b"k", b"v"), now_ms=clock.now_ms, producer_id=7, producer_epoch=0, base_sequence=0
            )
            await store.wal.drained()
            tidy = cleaner(replicas, clock, producer_id_expiration_ms=1_000)
            await tidy.retain()
            assert partition.log.producers is not None
            assert partition.log.producers.get(7) is not None
            clock.now_ms += 1_000
            await tidy.retain()
            assert partition.log.producers.get(7) is None

    asyncio.run(run())


def test_the_cleaner_runs_by_itself_and_stops(tmp_path: Path) -> None:
    async def run() -> None:
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
                    await store.disk.run(Lane.BACKGROUND, lambda: None)
            await tidy.stop()

    asyncio.run(run())
