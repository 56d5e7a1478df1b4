"""What a read of a remote log takes of the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chronik.model import ErrorCode, RequestError
from chronik.tiering import reader
from tests.unit.replication.support import put
from tests.unit.tiering.support import MEMORY_BYTES, Gate, Tiered, tiered


async def filled(world: Tiered, **how: object) -> None:
    await world.fill(100, **how)
    await world.uploader.upload(world.partition)
    await world.retain_locally()


async def test_a_read_without_room_gives_nothing_and_no_error(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await filled(world)
        with world.memory.holding() as others:
            others.resize(MEMORY_BYTES)
            found = await world.partition.read(0, 500, 100)
            assert (found.buffers, found.size_bytes) == ([], 0)
            assert (world.stats.deferred_reads, world.stats.failed_reads) == (1, 0)
            with pytest.raises(RequestError) as refused:  # clients ask again
                await world.partition.offset_for_timestamp(0)
            assert refused.value.code == ErrorCode.kafka_storage_error
        assert (await world.partition.read(0, 500, 100)).size_bytes > 0
        assert await world.offsets() == list(range(100))
        assert world.stats.read_memory_bytes == 0


async def test_reads_that_fail_or_are_given_up_leave_no_memory_taken(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "objects")
    async with tiered(tmp_path, gate) as world:
        await filled(world)
        (first, *_) = sorted((tmp_path / "objects").rglob("*.segment"))
        whole = first.read_bytes()
        first.write_bytes(bytes(300) + whole[300:])
        with pytest.raises(RequestError):
            await world.partition.read(0, 500, 100)
        gate.opened.clear()
        gate.entered.clear()
        read = asyncio.ensure_future(world.partition.read(0, 500, 100))
        await gate.entered.wait()
        assert world.stats.read_memory_bytes > 0
        read.cancel()
        await asyncio.wait([read])
        gate.opened.set()
        await world.fetches.stop()
        assert world.stats.read_memory_bytes == 0


async def test_a_batch_that_would_not_be_returned_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch may ask for little of many partitions whose batches are large."""
    monkeypatch.setattr(reader, "READ_BYTES_MAX", 1000)
    monkeypatch.setattr(reader, "CHUNK_BYTES", 500)
    async with tiered(tmp_path, segment_bytes=10_000) as world:
        for _ in range(3):
            put(world.partition, (b"key", b"v" * 9_000), now_ms=world.clock.now_ms)
        await world.settle()
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        found = await world.partition.read(0, 500, 3, min_one_batch=False)
        assert found.size_bytes == 0
        assert world.stats.cache_bytes <= 1500
        found = await world.partition.read(0, 500, 3)
        assert found.size_bytes > 9_000
        assert world.stats.cache_bytes > 9_000
