"""What leaves the object store, and what stays there (L06)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chronik.metadata import commands as c
from chronik.model import RequestError, Unavailable
from chronik.objects.store import ObjectMissing
from chronik.tiering import remote_logs
from tests.unit.replication.support import put
from tests.unit.tiering.support import TOPIC_ID, objects_in, tiered


async def test_objects_of_a_later_epoch_are_left_alone(tmp_path: Path) -> None:
    """A leader that was deposed and does not know it lists what the next one has just uploaded."""
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        (manifest,) = objects_in(tmp_path, "manifest")
        later = manifest.with_name("00000001" + manifest.name[8:].replace(".manifest", ".segment"))
        later.write_bytes(b"from the next leader")
        foreign = manifest.with_name("notes.txt")
        foreign.write_bytes(b"not ours")
        await world.retention.tidy(world.partition)
        assert later.exists()
        assert foreign.exists()
        world.bump_epoch()
        await world.retention.tidy(world.partition)
        assert not later.exists()
        assert foreign.exists()


async def test_retention_counts_both_tiers(tmp_path: Path) -> None:
    async with tiered(tmp_path, retention_ms=800, local_retention_ms=-2) as world:
        await world.fill(100)
        partition = world.partition
        await world.uploader.upload(partition)
        await world.retention.retain(partition)
        start = partition.log_start_offset
        assert 0 < start <= 20, "records of the last 800 ms stay: 80 of them, and the rest of a segment"
        assert await world.offsets() == list(range(start, 100))
    async with tiered(tmp_path / "second", retention_bytes=4_000, retention_ms=-1) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retention.retain(world.partition)
        kept = sum(one.size_bytes for one in world.partition.log.segments)
        assert 4_000 <= kept < 6_100


async def test_clients_that_delete_do_not_keep_retention_from_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has all places of waiting deletions would fill the store with what is past its time."""
    monkeypatch.setattr(remote_logs, "DELETES_MAX", 0)
    async with tiered(tmp_path, retention_ms=800, local_retention_ms=-2) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        with pytest.raises(RequestError, match="too many deletions wait"):
            await world.partition.delete_records(10, world.clock.now_ms)
        await world.retention.retain(world.partition)
        assert world.partition.log_start_offset > 0
        assert world.stats.refused_deletes == 1


async def test_switching_off_keeps_what_retention_allows(tmp_path: Path) -> None:
    """Only what the store alone has goes at once; local.retention.* do not count any more."""
    async with tiered(tmp_path, retention_ms=-1, local_retention_bytes=4_000) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        start = world.partition.log.log_start_offset
        assert 0 < start < 100
        off = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
        world.configure(local_retention_bytes=0, retention_ms=-1, **off)
        for _ in range(2):
            await world.retention.retain(world.partition)
            await world.retain_locally()
        assert world.partition.log_start_offset == start
        assert await world.offsets() == list(range(start, 100))
        world.configure(retention_ms=0, **off)
        world.clock.now_ms += 1_000
        for _ in range(3):
            await world.retention.retain(world.partition)
            await world.retain_locally()
        assert world.partition.log_start_offset == world.partition.log.log_start_offset == 100
        assert not world.partition.is_tiered


async def test_a_remote_log_that_is_neither_fed_nor_removed_goes_with_retention(tmp_path: Path) -> None:
    async with tiered(tmp_path, retention_ms=-1) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        world.configure(remote_storage_enable="false", retention_ms=0)
        world.clock.now_ms += 1_000
        for _ in range(3):
            await world.retention.retain(world.partition)
            await world.retain_locally()
        assert world.partition.log_start_offset == world.partition.log.log_start_offset == 100


async def test_a_topic_that_is_compacted_by_now_loses_nothing_by_age(tmp_path: Path) -> None:
    async with tiered(tmp_path, retention_ms=-1) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        world.configure(retention_ms=0, cleanup_policy="compact")
        world.clock.now_ms += 1_000
        await world.retention.retain(world.partition)
        assert world.partition.log_start_offset == 0


@pytest.mark.parametrize("timestamp_ms", [0, -1])
async def test_remote_records_without_a_time_age_from_their_last_write(
    tmp_path: Path, timestamp_ms: int
) -> None:
    async with tiered(tmp_path, retention_ms=3_600_000) as world:
        world.clock.now_ms = int(time.time() * 1000)
        for _ in range(100):
            put(world.partition, (b"key", b"v" * 80), now_ms=timestamp_ms)
        await world.settle()
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        assert world.partition.log.log_start_offset > 50
        world.clock.now_ms += 60_000
        await world.retention.retain(world.partition)
        assert world.partition.log_start_offset == 0
        world.clock.now_ms += 3_600_000
        await world.retention.retain(world.partition)
        assert world.partition.log_start_offset > 50


async def test_objects_of_topics_that_are_gone_are_removed(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        assert await world.retention.purge() is False
        assert objects_in(tmp_path, "segment")
        world.metadata.partitions.clear()
        world.metadata.apply(c.DeleteTopic(topic_id=TOPIC_ID))
        world.metadata.is_gone = True
        with pytest.raises(Unavailable):  # whoever cannot ask deletes nothing
            await world.retention.purge()
        assert objects_in(tmp_path, "segment")
        world.metadata.is_gone = False
        assert await world.retention.purge() is True
        assert objects_in(tmp_path, "segment") == objects_in(tmp_path, "manifest") == []


async def test_records_whose_manifest_is_lost_can_be_given_up(tmp_path: Path) -> None:
    """What `chronik verify --remote` advises: it must not need the manifest."""
    async with tiered(tmp_path) as made:
        await made.fill(40)
        await made.uploader.upload(made.partition)
        remote = made.partition.remote
        assert remote is not None
        for manifest in objects_in(tmp_path, "manifest"):
            manifest.unlink()
        made.catalog.forget_missing(())  # as after a restart
        await made.fill(40)
        with pytest.raises(ObjectMissing):
            await made.uploader.upload(made.partition)
        await made.logs.delete_before(made.partition, remote.end_offset)
        await made.uploader.upload(made.partition)
        assert made.partition.remote is not None
        assert made.partition.remote.end_offset > remote.end_offset
        assert await made.offsets() == list(range(remote.end_offset, 80))
