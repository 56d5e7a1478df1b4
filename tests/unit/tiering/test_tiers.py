"""A log over both tiers: what goes up comes back, and nothing is lost on the way (L06)."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.metadata import commands as c
from chronik.model import Unavailable
from chronik.records.batch import headers
from chronik.storage import reading
from chronik.storage.log import PartitionLog
from chronik.tiering.uploader import wanted_segments
from tests.unit.tiering.support import TOPIC_ID, objects_in, tiered


async def test_what_goes_up_comes_back(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        partition, remote = world.partition, world.partition.remote
        assert remote is not None
        assert remote.start_offset == 0
        assert remote.end_offset == partition.log.segments[-1].base_offset > 50
        await world.retain_locally()
        assert partition.log.log_start_offset == remote.end_offset
        assert partition.log_start_offset == 0
        assert await world.offsets() == list(range(100))
        assert partition.read_now(3, 100, 100) is None, "the loop does not wait for the store"
        await world.fill(50)
        await world.uploader.upload(partition)
        await world.retain_locally()
        assert await world.offsets() == list(range(150))
        assert world.stats.lag_segments == 0
        assert wanted_segments(partition) == []


async def test_local_copies_stay_until_the_metadata_log_has_the_manifest(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        world.metadata.is_gone = True
        with pytest.raises(Unavailable):
            await world.uploader.upload(world.partition)
        assert objects_in(tmp_path, "manifest")
        await world.retain_locally()
        assert world.partition.log.log_start_offset == 0
        world.metadata.is_gone = False
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        assert world.partition.log.log_start_offset > 50
        assert await world.offsets() == list(range(100))


async def test_a_leader_whose_log_is_shorter_than_the_remote_one_goes_on_behind_it(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(20)
        remote = c.RemoteLog(start_offset=0, end_offset=50, manifest="m", manifest_bytes=1)
        world.metadata.apply(
            c.SetRemoteLog(topic_id=TOPIC_ID, partition=0, leader_epoch=0, previous="", remote=remote)
        )
        log = world.partition.log
        assert (log.log_start_offset, log.log_end_offset, world.partition.high_watermark) == (50, 50, 50)
        await world.fill(1)
        assert log.log_end_offset == 51


async def test_records_that_leave_the_disk_while_they_are_read_come_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read in the disk's thread finds the next segment then, and a consumer would skip what is between."""
    async with tiered(tmp_path) as world:
        begun = world.clock.now_ms
        await world.fill(100)
        await world.uploader.upload(world.partition)

        async def late_read(log_: PartitionLog, *args: int, **how: bool) -> reading.LogSlice:
            await world.retain_locally()
            return await reading.read_cold(log_, *args, **how)

        find = reading.offset_for_timestamp

        async def late_find(log_: PartitionLog, *args: int) -> reading.TimestampedOffset | None:
            await world.retain_locally()
            return await find(log_, *args)

        with monkeypatch.context() as patch:
            patch.setattr(reading, "read", late_read)
            found = await world.partition.read(3, 500, 100)
        assert world.partition.log.log_start_offset > 50
        assert next(headers(b"".join(found.buffers)))[1].base_offset == 3
    async with tiered(tmp_path / "second") as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        monkeypatch.setattr(reading, "offset_for_timestamp", late_find)
        first = await world.partition.offset_for_timestamp(begun + 25)
        assert first is not None
        assert first.offset == 3


async def test_what_the_local_disk_lost_comes_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other replica has it, so readers would skip it."""
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        second = world.partition.log.segments[1]
        data = bytearray(second.path.read_bytes())
        data[300:900] = bytes(600)
        second.path.write_bytes(data)
        monkeypatch.setattr(reading, "read_now", lambda *args, **how: None)  # it looks at no checksums
        assert await world.offsets() == list(range(100))
        assert world.stats.reads > 0
