"""What a read of a remote log takes of the node."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from chronik.model import ErrorCode, RequestError
from chronik.records.batch import check_batch
from chronik.records.writer import build_marker
from chronik.server.handlers.offset_for_leader_epoch import epoch_end
from chronik.tiering import failures, reader
from chronik.tiering.uploader import wanted_segments
from tests.unit.replication.support import put
from tests.unit.tiering.support import MEMORY_BYTES, TP, Gate, Tiered, objects_in, tiered


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


async def test_bytes_of_the_store_are_not_trusted(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        first = objects_in(tmp_path, "segment")[0]
        whole = first.read_bytes()
        first.write_bytes(whole[:100] + bytes((whole[100] ^ 1,)) + whole[101:])
        with pytest.raises(RequestError) as damaged:
            await world.partition.read(0, 5_000, 100)
        assert damaged.value.code == ErrorCode.kafka_storage_error
        assert world.stats.damaged == 1
        first.write_bytes(whole)
        assert await world.offsets() == list(range(100))
        first.write_bytes(whole[:-1] + bytes((whole[-1] ^ 1,)))
    async with tiered(tmp_path / "second") as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        first = objects_in(tmp_path / "second", "segment")[0]
        data = first.read_bytes()
        first.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
        with pytest.raises(RequestError):
            await world.partition.read(0, 5_000, 100)
        first.write_bytes(data[:-50])
        with pytest.raises(RequestError):
            await world.partition.read(0, 5_000, 100)


async def test_clients_do_not_hear_where_the_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(failures, "_failed", lambda _, *args: logged.append(str(args[-1])))
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        for path in objects_in(tmp_path, "segment"):
            path.unlink()
            path.mkdir()  # it cannot be read
        with pytest.raises(RequestError) as read:
            await world.partition.read(0, 500, 100)
        with pytest.raises(RequestError) as looked_up:
            await world.partition.offset_for_timestamp(0)
        world.catalog.forget_missing(())
        for path in objects_in(tmp_path, "manifest"):
            path.unlink()
        with pytest.raises(RequestError) as deleted:
            await world.partition.delete_records(3, world.clock.now_ms)
        for told in (read, looked_up, deleted):
            assert told.value.code == ErrorCode.kafka_storage_error
            assert str(TP) in str(told.value)
            assert not re.search(r"objects|file:|[0-9a-f]{16}|segment|manifest", str(told.value))
        assert len(logged) == 3
        assert all((tmp_path / "objects").as_uri() in line for line in logged[:2])


async def test_offsets_by_time_and_epochs_reach_over_both_tiers(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        begun = world.clock.now_ms
        await world.fill(60)
        world.bump_epoch()
        await world.fill(40)
        partition = world.partition
        await world.uploader.upload(partition)
        await world.retain_locally()
        for offset in (0, 1, 37, 60, 99):
            found = await partition.offset_for_timestamp(begun + 10 * offset - 5)
            assert found is not None
            assert (found.offset, found.leader_epoch) == (offset, 0 if offset < 60 else 1)
        newest = await partition.offset_of_max_timestamp()
        assert newest is not None
        assert newest.offset == 99
        epochs = await partition.epochs()
        assert epochs.epoch_of(59) == 0
        assert epochs.end_offset(0, 100) == (0, 60)
        assert epochs.end_offset(1, 100) == (1, 100)


async def test_aborted_transactions_are_told_with_remote_records(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        partition = world.partition
        how = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
        await world.fill(5)
        await world.fill(1, base_sequence=0, **how)
        await world.fill(40)
        assert wanted_segments(partition) == [], "a segment of an open transaction stays"
        marker = build_marker(
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=False,
            timestamp_ms=world.clock.now_ms,
        )
        partition.log.append(memoryview(marker), check_batch(marker), 0, world.clock.now_ms)
        await world.fill(60)
        await world.uploader.upload(partition)
        await world.retain_locally()
        assert partition.log.log_start_offset > 46
        found = await partition.read(3, 2_000, partition.last_stable_offset)
        assert partition.aborted_transactions(3, found) == [(7, 5)]
        behind = await partition.read(47, 300, partition.last_stable_offset)
        assert partition.aborted_transactions(47, behind) == []


async def test_epochs_of_remote_records_are_known_when_the_local_log_is_empty(tmp_path: Path) -> None:
    """A consumer that hears of another end would take it for truncation, and read everything again."""
    async with tiered(tmp_path) as world:
        await world.fill(30)
        world.bump_epoch()
        await world.fill(30)
        world.partition.log.roll(60)
        await world.uploader.upload(world.partition)
        world.partition.log.restart_at(60)  # as a replica that was behind, and leads now
        world.bump_epoch()
        assert await epoch_end(world.partition, 0) == (0, 30)
        assert await epoch_end(world.partition, 1) == (1, 60)
