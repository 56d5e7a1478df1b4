"""Segments that go up: which, under whose epoch, and what their copies hold (L06)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from chronik.metadata import commands as c
from chronik.model import ErrorCode, RequestError, StorageError
from chronik.objects.local import LocalObjects
from chronik.storage.log import PartitionLog
from chronik.tiering import segment_copy, uploader
from chronik.tiering.manifest import (
    decode_footer,
)
from chronik.tiering.uploader import SEGMENTS_A_COMMIT, wanted_segments
from tests.unit.replication.support import put
from tests.unit.tiering.support import TP, objects_in, tiered


async def test_what_a_deposed_leader_uploads_does_not_count(tmp_path: Path) -> None:
    """The metadata log says that another epoch began before this node hears of it."""
    async with tiered(tmp_path) as world:
        await world.fill(100)
        world.metadata.partitions.clear()  # this node does not hear what is decided
        world.bump_epoch()
        with pytest.raises(RequestError) as refused:
            await world.uploader.upload(world.partition)
        assert refused.value.code == ErrorCode.fenced_leader_epoch
        known = world.metadata.state.partition(TP)
        assert known is not None
        assert known.remote is None
        await world.retain_locally()
        assert world.partition.log.log_start_offset == 0
        left = len(objects_in(tmp_path, "segment"))
        assert left > 0
        world.metadata.partitions.append(world.partition)
        world.partition.assign(known)
        await world.uploader.upload(world.partition)
        assert await world.retention.tidy(world.partition) is False
        assert len(objects_in(tmp_path, "segment")) == left, "the orphans are gone, as many count now"
        assert len(objects_in(tmp_path, "manifest")) == 1
        await world.retain_locally()
        assert await world.offsets() == list(range(100))


class Hooked(LocalObjects):
    """A store in which something happens after the first write."""

    then: Callable[[], Awaitable[object]] | None = None

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        await super().put(name, chunks)
        then, self.then = self.then, None
        if then is not None:
            await then()


async def test_records_that_are_deleted_during_the_first_upload_stay_deleted(tmp_path: Path) -> None:
    store = Hooked(tmp_path / "objects")
    async with tiered(tmp_path, store) as world:
        await world.fill(100)
        store.then = lambda: world.partition.delete_records(5, world.clock.now_ms)
        await world.uploader.upload(world.partition)
        assert world.partition.log_start_offset == 5
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        assert world.partition.log.log_start_offset > 50
        assert await world.offsets() == list(range(5, 100))


async def test_an_upload_that_counts_late_brings_no_deleted_records_back(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        world.metadata.is_silent = True
        with pytest.raises(RequestError):
            await world.uploader.upload(world.partition)
        world.metadata.is_silent = False
        end = wanted_segments(world.partition)[SEGMENTS_A_COMMIT - 1 :][:1] or wanted_segments(
            world.partition
        )
        deleted = end[-1].end_offset
        await world.partition.delete_records(deleted, world.clock.now_ms)
        await world.metadata.submit(c.Noop())
        assert world.partition.log_start_offset == deleted


async def test_a_gap_between_segments_belongs_to_the_one_behind_it(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(40)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        await world.fill(60)
        log_ = world.partition.log
        first, end = log_.segments[0], log_.segments[1].base_offset
        log_.replace_segments([first], None, end)  # as compaction does, had the topic been compacted
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        world.catalog.forget_missing(())
        assert await world.offsets() == [*range(first.base_offset), *range(end, 100)]


async def test_the_index_of_a_segment_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tiered(tmp_path, index_interval_bytes=0) as world:
        monkeypatch.setattr(uploader, "INDEX_INTERVAL_MIN", 700)
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        manifest = await world.catalog.manifest(world.partition)
        assert len(manifest.segments) > 3
        assert all(one.footer_bytes < 150 for one in manifest.segments)
        assert await world.offsets() == list(range(100))
        monkeypatch.setattr(segment_copy, "FOOTER_BYTES_MAX", 20)
        await world.fill(30)
        with pytest.raises(StorageError):
            await world.uploader.upload(world.partition)


async def test_a_batch_that_is_too_large_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair would take the same batch from another replica. What is before it goes up, and once."""
    monkeypatch.setattr(segment_copy, "BATCH_BYTES_MAX", 500)
    monkeypatch.setattr(PartitionLog, "will_be_repaired", lambda *_: pytest.fail("it is sound"))
    async with tiered(tmp_path) as world:
        await world.fill(30)
        put(world.partition, (b"key", b"v" * 600), now_ms=world.clock.now_ms)
        await world.fill(30)
        seen = []
        for _ in range(2):
            with pytest.raises(StorageError, match=r"the batch at offset 30 has .* stay on this disk"):
                await world.uploader.upload(world.partition)
            seen.append((world.partition.remote, objects_in(tmp_path, "segment")))
        (first, *_), remote = wanted_segments(world.partition), world.partition.remote
        assert remote is not None
        assert 0 < remote.end_offset == first.base_offset <= 30 < first.end_offset
        assert seen[0] == seen[1]
        await world.partition.delete_records(31, world.clock.now_ms)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        assert world.partition.log.log_start_offset > 31
        assert await world.offsets() == list(range(31, 61))


async def test_no_topic_makes_its_readers_look_through_whole_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the topic would pay with the node's memory and its read thread."""
    monkeypatch.setattr(uploader, "INDEX_INTERVAL_MAX", 500)
    async with tiered(tmp_path, index_interval_bytes=2**31 - 1) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        manifest = await world.catalog.manifest(world.partition)
        for segment in manifest.segments:
            (path,) = (tmp_path / "objects").rglob(segment.name)
            offsets, _, _ = decode_footer(path.read_bytes()[segment.log_bytes :], segment)
            assert offsets.position_for(segment.end_offset - 1) > segment.log_bytes - 1000
