"""Reads of remote logs that are under way for fetches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chronik.tiering import remote_logs
from tests.unit.tiering.support import Gate, Tiered, tiered


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
