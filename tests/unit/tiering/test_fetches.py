"""What many readers want is fetched once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chronik.objects.store import ObjectStoreBusy, ObjectStoreError
from chronik.tiering import fetches
from chronik.tiering.fetches import ObjectPart
from tests.unit.tiering.support import Gate, tiered


async def test_manifests_indexes_and_pieces_are_fetched_once(tmp_path: Path) -> None:
    """All consumers of a topic come at once after a restart of the node."""
    store = Gate(tmp_path / "objects")
    async with tiered(tmp_path, store) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        world.catalog.forget_missing(())
        store.opened.clear()
        reads = [asyncio.ensure_future(world.reader.read(world.partition, 0, 500)) for _ in range(20)]
        await store.entered.wait()
        store.opened.set()
        assert all(found.size_bytes > 0 for found in await asyncio.gather(*reads))
        assert len(store.asked) >= 3
        assert set(store.asked.values()) == {1}
        assert world.stats.read_memory_bytes == 0


async def test_an_error_is_told_to_all_who_wait_and_not_kept(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        part = ObjectPart("a/b", 0, 1)
        outcomes: list[bytes | Exception] = [ObjectStoreError("away"), b"x"]

        async def fetch() -> bytes:
            await asyncio.sleep(0)
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        waiting = [world.fetches.get(part, fetch, 1) for _ in range(3)]
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(one) for one in told] == ["away"] * 3
        assert await world.fetches.get(part, fetch, 1) == b"x"


async def test_what_waits_is_bounded_and_nothing_is_fetched_ahead_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetches, "PENDING_MAX", 3)
    monkeypatch.setattr(fetches, "PREFETCH_MAX", 2)
    async with tiered(tmp_path) as world:
        begun: list[str] = []
        ended = asyncio.Event()

        async def fetch() -> None:
            begun.append("x")
            await ended.wait()

        for number in range(5):
            world.fetches.begin(ObjectPart(f"ahead/{number}", 0, 1), fetch, 1)
        wanted = asyncio.ensure_future(world.fetches.get(ObjectPart("wanted", 0, 1), fetch, 1))
        await asyncio.sleep(0)
        with pytest.raises(ObjectStoreBusy):
            await world.fetches.get(ObjectPart("too-many", 0, 1), fetch, 1)
        ended.set()
        await wanted
        assert len(begun) == 3
