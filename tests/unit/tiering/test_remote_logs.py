"""Reads of remote logs that are under way for fetches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chronik.model import ErrorCode, RequestError
from chronik.tiering import remote_logs
from chronik.tiering.remote_logs import READS_MAX
from tests.unit.tiering.support import Gate, Tiered, objects_in, tiered


async def filled(world: Tiered) -> None:
    await world.fill(100)
    await world.uploader.upload(world.partition)
    await world.retain_locally()


async def test_a_read_that_finds_no_place_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch with an error is answered at once: it would do without the records of other partitions."""
    monkeypatch.setattr(remote_logs, "READS_MAX", 2)
    gate = Gate(tmp_path / "objects")
    async with tiered(tmp_path, gate) as world:
        await filled(world)
        gate.opened.clear()
        for offset in range(4):
            assert (await world.partition.read(offset, 500, 100, until=0.0)).size_bytes == 0
        assert (world.stats.slow_reads, world.stats.deferred_reads) == (2, 2)
        gate.opened.set()
        later = asyncio.get_running_loop().time() + 60
        for offset in (0, 1, 50):
            assert (await world.partition.read(offset, 500, 100, until=later)).size_bytes > 0


async def test_one_connection_takes_only_some_of_the_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_logs, "READS_PER_ASKER", 2)
    gate = Gate(tmp_path / "objects")
    async with tiered(tmp_path, gate) as world:
        await filled(world)
        gate.opened.clear()
        one, other = object(), object()
        for offset in range(4):
            await world.partition.read(offset, 500, 100, until=0.0, asker=one)
        assert world.stats.deferred_reads == 2
        await world.partition.read(3, 500, 100, until=0.0, asker=other)
        assert world.stats.deferred_reads == 2
        gate.opened.set()
        later = asyncio.get_running_loop().time() + 60
        for offset in (0, 1, 3):
            assert (await world.partition.read(offset, 500, 100, until=later, asker=other)).size_bytes > 0
        assert (await world.partition.read(2, 500, 100, until=later, asker=one)).size_bytes > 0
        assert world.stats.deferred_reads == 2, "places of reads that ended are free again"


async def test_deleted_records_are_gone_from_both_tiers(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        partition = world.partition
        await world.uploader.upload(partition)
        await world.retain_locally()
        assert await partition.delete_records(30, world.clock.now_ms) == 30
        assert await world.offsets() == list(range(30, 100))
        with pytest.raises(RequestError) as gone:
            await partition.read(29, 100, 100)
        assert gone.value.code == ErrorCode.offset_out_of_range
        before = len(objects_in(tmp_path, "segment"))
        await world.retention.tidy(partition)
        assert len(objects_in(tmp_path, "segment")) < before
        assert await world.offsets() == list(range(30, 100))
        end = partition.high_watermark
        assert await partition.delete_records(-1, world.clock.now_ms) == end
        assert partition.log_start_offset == partition.log.log_start_offset == end
        assert partition.remote is not None
        assert partition.remote.manifest == ""
        await world.retention.tidy(partition)
        assert objects_in(tmp_path, "segment") == []
        await world.fill(100)
        await world.uploader.upload(partition)
        await world.retain_locally()
        assert await world.offsets() == list(range(end, end + 100))


async def test_few_deletions_wait_for_a_store_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_logs, "DELETES_PER_PARTITION", 3)
    gate = Gate(tmp_path / "objects")
    async with tiered(tmp_path, gate) as world:
        await filled(world)
        gate.opened.clear()
        deleting = [
            asyncio.create_task(world.partition.delete_records(30 + n, world.clock.now_ms)) for n in range(5)
        ]
        done = await _ended(set(deleting), 2)
        for one in done:
            error = one.exception()
            assert isinstance(error, RequestError)
            assert error.code == ErrorCode.kafka_storage_error
            assert "too many deletions wait" in str(error)
        assert (world.stats.deletes, world.stats.refused_deletes) == (3, 2)
        gate.opened.set()
        await asyncio.gather(*(one for one in deleting if one not in done))
        assert world.stats.deletes == 0
        assert await world.partition.delete_records(50, world.clock.now_ms) == 50


async def _ended(waiting: set[asyncio.Task[int]], count: int) -> set[asyncio.Task[int]]:
    found: set[asyncio.Task[int]] = set()
    while len(found) < count:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        found |= done
    return found


async def test_a_slow_store_delays_a_read_no_longer_than_it_may(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "objects")
    async with tiered(tmp_path, gate) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        gate.opened.clear()
        loop = asyncio.get_running_loop()
        found = await world.partition.read(0, 500, 100, until=loop.time() + 0.01)
        assert (found.buffers, found.size_bytes) == ([], 0)
        assert world.stats.slow_reads == 1
        gate.opened.set()
        found = await world.partition.read(0, 500, 100, until=loop.time() + 60)
        assert found.size_bytes > 0
        again = await world.partition.read(0, 500, 100, until=0.0)
        assert again.size_bytes in (0, found.size_bytes), (
            "what is in memory may be found even without waiting"
        )


async def test_looking_up_an_offset_takes_no_longer_than_a_client_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path / "objects")
    monkeypatch.setattr(remote_logs, "LOOK_UP_SECONDS", 0.01)
    async with tiered(tmp_path, gate) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        world.catalog.forget_missing(())
        gate.opened.clear()
        for look_up in (
            world.partition.epochs(),
            world.partition.offset_for_timestamp(0),
            world.partition.offset_of_max_timestamp(),
        ):
            with pytest.raises(RequestError) as slow:
                await look_up
            assert slow.value.code == ErrorCode.kafka_storage_error
            assert "within 0.01 s" in str(slow.value)
        gate.opened.set()


async def test_a_fetch_that_comes_again_joins_the_read_it_began(tmp_path: Path) -> None:
    """The store is away for a while, and one consumer keeps asking: it must not use up all reads."""
    gate = Gate(tmp_path / "objects")
    async with tiered(tmp_path, gate) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        gate.opened.clear()
        for _ in range(2 * READS_MAX):
            assert (await world.partition.read(0, 500, 100, until=0.0)).size_bytes == 0
        assert world.stats.reads == 1
        gate.opened.set()
        later = asyncio.get_running_loop().time() + 60
        for offset in (0, 20):
            assert (await world.partition.read(offset, 500, 100, until=later)).size_bytes > 0
