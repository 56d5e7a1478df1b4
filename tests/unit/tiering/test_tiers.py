"""A log over both tiers: what goes up comes back, and nothing is lost on the way (L06)."""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from chronik.metadata import commands as c
from chronik.model import ChronikError, ErrorCode, RequestError, StorageError, Unavailable
from chronik.objects.local import LocalObjects
from chronik.records.batch import check_batch, headers
from chronik.records.writer import build_marker
from chronik.server.handlers.offset_for_leader_epoch import epoch_end
from chronik.storage import reading
from chronik.storage.index import TimeIndex
from chronik.storage.log import PartitionLog
from chronik.storage.producer_state import AbortedTxn
from chronik.tiering import catalog, failures, remote_logs, segment_copy, uploader
from chronik.tiering.manifest import (
    DamagedObject,
    RemoteManifest,
    RemoteSegment,
    SegmentFooter,
    decode_footer,
    encode,
)
from chronik.tiering.remote_logs import READS_MAX
from chronik.tiering.uploader import SEGMENTS_A_COMMIT, wanted_segments
from tests.unit.replication.support import put
from tests.unit.tiering.support import TOPIC_ID, TP, Gate, tiered


def objects_in(folder: Path, suffix: str) -> list[Path]:
    return sorted((folder / "objects").rglob(f"*.{suffix}"))


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


async def test_a_manifest_made_from_another_than_the_one_that_counts_is_refused(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        remote = world.partition.remote
        assert remote is not None
        other = c.RemoteLog(start_offset=0, end_offset=200, manifest="x", manifest_bytes=1)
        for epoch, previous, then in (
            (0, "", other),
            (1, remote.manifest, other),
            (0, remote.manifest, c.RemoteLog(start_offset=0, end_offset=1, manifest="x")),
            (0, remote.manifest, c.RemoteLog(start_offset=0, end_offset=200)),
        ):
            command = c.SetRemoteLog(
                topic_id=TOPIC_ID, partition=0, leader_epoch=epoch, previous=previous, remote=then
            )
            with pytest.raises(RequestError):
                world.metadata.apply(command)
        assert world.partition.remote == remote


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


async def test_manifests_in_memory_are_bounded_by_their_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        monkeypatch.setattr(catalog, "SEGMENTS_KEPT", 1)
        own = await world.catalog.manifest(world.partition)
        assert len(own.segments) > 1
        assert await world.catalog.manifest(world.partition) is own, "the last one is kept"
        world.catalog.keep((b"another", 0), "x", own)
        world.catalog.keep((b"another", 1), "x", own)
        again = await world.catalog.manifest(world.partition)
        assert again is not own
        assert again == own


async def test_two_clusters_with_long_ids_share_no_folder(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        roots = set()
        for end in ("a", "b"):
            world.metadata.state.cluster_id = 60 * "x" + end
            roots.add(world.catalog.root)
        assert len(roots) == 2


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


async def test_a_manifest_that_nobody_could_read_is_not_made_to_count(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        before = world.partition.remote
        assert before is not None
        manifest = await world.catalog.manifest(world.partition)
        torn = RemoteManifest((manifest.segments[0], *manifest.segments[2:]), manifest.epochs)
        with pytest.raises(ChronikError):
            await world.catalog.commit(world.partition, 0, torn, 0, before.end_offset)
        assert world.partition.remote == before


def test_a_forged_footer_is_damaged() -> None:
    """A checksum of 32 bits keeps out what is broken, not who means harm."""
    index = SegmentFooter(b"", TimeIndex(0).encode(), ())
    for footer in (
        SegmentFooter(b"", struct.pack(">qi", 5, -1), ()),
        SegmentFooter(struct.pack(">ii", 5, 100), b"", ()),
        SegmentFooter(b"", b"", (AbortedTxn(1, 0, 2**63, 0),)),
        SegmentFooter(b"", b"", (AbortedTxn(-1, 0, 5, 0),)),
        index,
    ):
        data = encode(footer)
        segment = RemoteSegment("x", 0, 10, 100, len(data), crc32c(data), 5)
        if footer is index:
            assert decode_footer(data, segment)[2] == ()
        else:
            with pytest.raises(DamagedObject):
                decode_footer(data, segment)


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
