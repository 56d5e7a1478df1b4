from __future__ import annotations

import asyncio
import errno
import logging
import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from chronik.model import RequestError, StorageError, TopicPartition
from chronik.records.batch import Buffer, read_header
from chronik.storage import checkpoint, reading
from chronik.storage.disk import IoThread, RealDisk, RealFile
from chronik.storage.index import OFFSET_ENTRY, TIME_ENTRY
from chronik.storage.log import LogConfig
from chronik.storage.log_parts import SegmentDamage
from chronik.storage.recovery import _Recovery
from chronik.storage.segment import Segment
from chronik.storage.segment_loading import load_segments
from chronik.storage.store import StoreOptions, log_directory
from chronik.storage.wal import PROFILES, WalOptions
from chronik.storage.wal_queue import WalSink
from tests.unit.storage.support import (
    OPTIONS,
    TOPIC_ID,
    DiskSpy,
    append,
    append_durably,
    open_orders,
    opened,
    read_values,
    too_many_files,
)


def numbered(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(i, b"value-%d" % i) for i in range(first, last)]


async def fill(store, log, first: int, last: int) -> None:
    for i in range(first, last):
        append(log, b"value-%d" % i)
    await store.wal.drained()


def wal_files(root: Path) -> list[Path]:
    return sorted(p for p in (root / "wal").iterdir() if p.stem.isdigit())


async def test_what_was_committed_survives_a_crash(tmp_path: Path) -> None:
    async with opened(tmp_path, crash=True) as (store, _):
        await fill(store, open_orders(store), 0, 100)
    for start in (100, 110, 120):
        async with opened(tmp_path, crash=True) as (store, report):
            log = open_orders(store)
            assert log.log_end_offset == start
            assert await read_values(log) == numbered(0, start)
            assert report.damage == []
            await fill(store, log, start, start + 10)


async def test_a_clean_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        await fill(store, open_orders(store), 0, 50)
    async with opened(tmp_path) as (store, report):
        assert report.entries == 0
        assert await read_values(open_orders(store)) == numbered(0, 50)


async def test_segments_roll_and_checkpoints_retire_wal_files(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=20_000)
    options = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=50_000))
    async with opened(tmp_path, options, crash=True) as (store, _):
        log = open_orders(store, config)
        for first in range(0, 2000, 100):
            await fill(store, log, first, first + 100)
        before, known = len(wal_files(tmp_path)), store.wal.files
        await store.checkpoint()
        await store.checkpoint()
        assert len(wal_files(tmp_path)) < before
        assert store.wal.files is known, "the I/O thread adds to it at any moment"
        assert [file.path for file in known] == wal_files(tmp_path)
        assert len(log.segments) > 5
        assert await read_values(log) == numbered(0, 2000)
        await fill(store, log, 2000, 2010)
    async with opened(tmp_path, options) as (store, report):
        assert report.entries == 10
        assert await read_values(open_orders(store, config)) == numbered(0, 2010)


async def test_a_torn_tail_is_cut_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        await fill(store, log, 0, 10)
        await append_durably(store, log, b"x" * 5000)
    path = wal_files(tmp_path)[-1]
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    path.write_bytes(data[: used - 2000] + b"\0" * (len(data) - used + 2000))
    async with opened(tmp_path) as (store, report):
        assert await read_values(open_orders(store)) == numbered(0, 10)
        assert len(report.torn) == 1
        assert report.damage == []
    assert "cut off an unfinished write" in caplog.text


async def test_a_flipped_bit_inside_the_wal_costs_only_its_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        for i in range(20):
            await append_durably(store, log, b"value-%d" % i)
    path = wal_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"value-7") + 2] ^= 0x10
    path.write_bytes(data)
    async with opened(tmp_path) as (store, report):
        assert await read_values(open_orders(store)) == [*numbered(0, 7), *numbered(8, 20)]
        assert len(report.damage) == 1
    assert "the disk lost acknowledged data" in caplog.text


async def test_a_flipped_bit_in_a_wal_header_is_stepped_over(tmp_path: Path) -> None:
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        for i in range(20):
            await append_durably(store, log, b"value-%d" % i)
    path = wal_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    place = data.rindex(b"CWAL", 0, data.index(b"value-7"))
    data[place + 10] ^= 1
    path.write_bytes(data)
    async with opened(tmp_path) as (store, report):
        assert await read_values(open_orders(store)) == [*numbered(0, 7), *numbered(8, 20)]
        assert len(report.damage) == 1


async def test_a_flipped_bit_in_a_segment_is_said_and_the_rest_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        for i in range(300):
            append(log, b"value-%d" % i + b"." * 200)
        await store.wal.drained()
    path = next((tmp_path / "topics" / "orders-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[data.index(b"value-150.") + 3] ^= 4
    path.write_bytes(data)
    async with opened(tmp_path) as (store, _):
        offsets = [offset for offset, _ in await read_values(open_orders(store))]
        assert 150 not in offsets
        assert offsets[0] == 0
        assert offsets[-1] == 299
        assert len(offsets) > 270
        assert offsets == sorted(set(offsets))
    assert "is damaged near byte" in caplog.text


@pytest.mark.parametrize("harm", ["missing", "cut", "noise"])
async def test_a_harmed_index_is_made_anew(tmp_path: Path, harm: str) -> None:
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        for i in range(3000):
            append(log, b"value-%d" % i, timestamp_ms=1000 + i)
        await store.wal.drained()
    for path in (tmp_path / "topics" / "orders-0").glob("*index"):
        if harm == "missing":
            path.unlink()
        elif harm == "cut":
            path.write_bytes(path.read_bytes()[:-3])
        else:
            path.write_bytes(random.Random(1).randbytes(160))
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        assert await read_values(log) == numbered(0, 3000)
        found = await reading.offset_for_timestamp(log, 2500, log.log_end_offset)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (1500, 2500)


async def test_a_harmed_index_does_not_stop_appends_while_the_disk_is_full(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        await fill(store, open_orders(store), 0, 1000)
    path = next((tmp_path / "topics" / "orders-0").glob("*.index"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        write_at, refused = RealFile.write_at, []

        def no_space(file: RealFile, position: int, buffers: Sequence[Buffer]) -> int:
            if "index" not in file._path.suffix:
                return write_at(file, position, buffers)
            refused.append(file._path.suffix)
            raise OSError(errno.ENOSPC, "no space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RealFile, "write_at", no_space)
            assert append(log, b"value-1000") == 1000
            await store.wal.drained()
        assert refused
        assert await read_values(log) == numbered(0, 1001)
    assert path.read_bytes()[: len(whole)] == whole, "written with what came next"


async def test_files_that_cannot_be_opened_refuse_appends_until_they_can(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        await fill(store, open_orders(store), 0, 10)
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RealDisk, "list", too_many_files)
            with pytest.raises(StorageError, match=r"orders-0 cannot be opened.*too many open files"):
                append(log, b"refused")
            with pytest.raises(StorageError):
                await log.load()
        assert append(log, b"value-10") == 10
        await store.wal.drained()
        assert await read_values(log) == numbered(0, 11)


async def test_an_index_from_before_a_cut_leads_nobody_astray(tmp_path: Path) -> None:
    """Indexes are not synced: a power loss may bring back entries of what stood in the log before."""
    async with opened(tmp_path) as (store, _):
        await fill(store, open_orders(store), 0, 1000)
    path = next((tmp_path / "topics" / "orders-0").glob("*.index"))
    pairs = list(OFFSET_ENTRY.iter_unpack(path.read_bytes()))
    assert len(pairs) > 6
    shifted = [(offset, position + 13 * (place % 3 > 0)) for place, (offset, position) in enumerate(pairs)]
    path.write_bytes(b"".join(OFFSET_ENTRY.pack(*pair) for pair in shifted))
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        for offset in range(0, 1000, 7):
            found = await reading.read(log, offset, 1, log.log_end_offset)
            assert read_header(found.buffers[0]).base_offset == offset
        assert await read_values(log) == numbered(0, 1000)


async def test_a_time_index_from_before_a_cut_leads_nobody_astray(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        for offset in range(2000):
            append(log, b"value", timestamp_ms=1000 + offset)
        await store.wal.drained()
    path = next((tmp_path / "topics" / "orders-0").glob("*.timeindex"))
    pairs = list(TIME_ENTRY.iter_unpack(path.read_bytes()))
    assert len(pairs) > 6
    older = [(stamp - 20 * (place % 3 > 0), offset) for place, (stamp, offset) in enumerate(pairs)]
    path.write_bytes(b"".join(TIME_ENTRY.pack(*pair) for pair in older))
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        for offset in range(0, 2000, 7):
            found = await reading.offset_for_timestamp(log, 1000 + offset, log.log_end_offset)
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (offset, 1000 + offset)


async def test_a_shortened_segment_is_said_and_offsets_are_not_given_out_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as (store, _):
        await fill(store, open_orders(store), 0, 100)
    path = next((tmp_path / "topics" / "orders-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-100])
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        assert await append_durably(store, log, b"value-100") == 100
        values = await read_values(log)
        assert values[-1] == (100, b"value-100")
        assert values[:90] == numbered(0, 90)
    assert "are lost on this disk" in caplog.text


async def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        await fill(store, log, 0, 10)
        await store.checkpoint()
        await fill(store, log, 10, 20)
        await store.checkpoint()
        await fill(store, log, 20, 30)
    path = tmp_path / checkpoint.FILE_NAME
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    async with opened(tmp_path) as (store, _):
        assert await read_values(open_orders(store)) == numbered(0, 30)


async def test_a_full_disk_refuses_writes_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        heard: list[object] = []

        class Listener:
            def on_durable(self, end_offset: int) -> None:
                heard.append(end_offset)

            def on_damaged(self, damage: SegmentDamage) -> bool:
                return False

            def on_rejected(self, end_offset: int, error: StorageError) -> None:
                heard.append(("rejected", end_offset))

        log.subscribe(Listener())
        await append_durably(store, log, b"value-0")

        def no_space(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(RealFile, "write_at", no_space)
            append(log, b"lost-1")
            append(log, b"lost-2")
            await store.wal.drained()
        assert log.log_end_offset == 1
        assert heard == [1, ("rejected", 1)]
        await append_durably(store, log, b"value-1")
        assert await read_values(log) == numbered(0, 2)
    async with opened(tmp_path) as (store, _):
        assert await read_values(open_orders(store)) == numbered(0, 2)


class HeldWal:
    """Takes entries and says nothing of them until it is told to."""

    def __init__(self) -> None:
        self.entries: list[tuple[WalSink, int]] = []

    def append(
        self, kind: int, topic_id: bytes, partition: int, offset: int, payload, sink, token, sync_within=0.0
    ) -> None:
        self.entries.append((sink, token))

    def commit(self, count: int) -> None:
        for sink, token in self.entries[:count]:
            sink.committed(token)
        del self.entries[:count]


async def test_an_append_that_was_cut_off_makes_nothing_durable(tmp_path: Path) -> None:
    """A follower would acknowledge what is not on its disk: the offset stands for another batch by then."""
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        held = HeldWal()
        log._wal = held  # type: ignore[assignment]
        append(log, b"kept")
        append(log, b"dropped")
        log.truncate(1)
        append(log, b"instead", epoch=1)
        held.commit(1)
        assert (log.durable_end_offset, log.log_end_offset) == (0, 2), "its name"
        for count_as in ("what is kept", "what was dropped", "the cut"):
            held.commit(1)
            assert (log.durable_end_offset, log.log_end_offset) == (1, 2), count_as
        held.commit(1)
        assert (log.durable_end_offset, log.log_end_offset) == (2, 2)


async def test_a_cut_inside_a_batch_keeps_no_checkpoint_from_being_written(tmp_path: Path) -> None:
    """The log ends behind its last batch then: no segment file ever reaches that far."""
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        append(log, *[b"kept"] * 5)
        append(log, *[b"dropped"] * 5)
        await store.wal.drained()
        log.truncate(7)
        await store.checkpoint()
        assert (log.flushed_offset, log.log_end_offset) == (7, 7)
        append(log, b"later", epoch=1)
        await store.checkpoint()
        assert log.flushed_offset == 8
    async with opened(tmp_path) as (store, _):
        assert [offset for offset, _ in await read_values(open_orders(store))] == [0, 1, 2, 3, 4, 7]


@pytest.mark.parametrize("is_in_file", [True, False])
async def test_what_a_failed_round_took_back_is_not_the_youngest_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_file: bool
) -> None:
    """Else no look-up finds that one, and a sound time index looks damaged once the segment is closed."""
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        await append_durably(store, log, b"youngest", timestamp_ms=5_000)
        if is_in_file:
            await store.flusher.flushed()

        def bad_sync(_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(RealFile, "sync", bad_sync)
            append(log, b"lost", timestamp_ms=9_000)
            await store.wal.drained()
        await append_durably(store, log, b"later", timestamp_ms=1_000)
        await store.flusher.flushed()
        found = await reading.offset_of_max_timestamp(log)
        assert found is not None
        assert (found.timestamp_ms, found.offset) == (5_000, 0)


@pytest.mark.parametrize("is_in_file", [True, False])
async def test_a_cut_log_knows_its_youngest_record(tmp_path: Path, is_in_file: bool) -> None:
    """What is in memory alone counts, too: look-ups by time and retention go by it."""
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        append(log, b"youngest", timestamp_ms=5_000)
        append(log, b"kept", timestamp_ms=1_000)
        await store.wal.drained()
        if is_in_file:
            await store.flusher.flushed()
        append(log, b"dropped", timestamp_ms=9_000)
        log.truncate(2)
        await store.wal.drained()
        await store.checkpoint()
        youngest = log.segments[-1]
        assert (youngest.max_timestamp, youngest.max_timestamp_offset) == (5_000, 0)


async def test_what_two_cuts_left_is_durable_and_nothing_behind_it(tmp_path: Path) -> None:
    """A checkpoint, too, has to hear of it: it speaks of all that was appended before it."""
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        held = HeldWal()
        log._wal = held  # type: ignore[assignment]
        for number in range(6):
            append(log, b"%d" % number)
        log.truncate(4)
        log.truncate(2)
        append(log, b"instead", epoch=1)
        held.commit(7)
        assert (log.durable_end_offset, log.synced_end_offset) == (2, 2)
        log.restart_at(0)
        held.commit(3)
        assert (log.durable_end_offset, log.synced_end_offset) == (0, 0)


async def test_a_failed_sync_takes_the_round_back_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of the failed round may be on disk; offsets given out again must win over them."""
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        await append_durably(store, log, b"value-0")

        def bad_sync(_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(RealFile, "sync", bad_sync)
            append(log, b"lost")
            await store.wal.drained()
        await append_durably(store, log, b"value-1")
    async with opened(tmp_path) as (store, _):
        assert await read_values(open_orders(store)) == numbered(0, 2)


async def test_delete_records_survives_a_crash(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2_000)
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store, config)
        await fill(store, log, 0, 200)
        await store.flusher.flushed()
        await log.advance_start(150)
        assert await read_values(log) == numbered(150, 200)
        with pytest.raises(RequestError):
            await reading.read(log, 149, 100, 200)
    async with opened(tmp_path) as (store, _):
        log = open_orders(store, config)
        assert log.log_start_offset == 150
        assert await read_values(log) == numbered(150, 200)


async def test_deleted_logs_do_not_come_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        await fill(store, log, 0, 10)
        await store.delete_log(TopicPartition("orders", 0), TOPIC_ID)
        assert not (tmp_path / "topics" / "orders-0").exists()
        assert open_orders(store).log_end_offset == 0


@pytest.mark.parametrize("appends", [0, 1])
async def test_a_replica_that_left_and_came_back_holds_only_what_it_got_since(
    tmp_path: Path, appends: int
) -> None:
    """Whatever the checkpoint says: it was written while the old log was there."""
    tp = TopicPartition("orders", 0)
    async with opened(tmp_path, crash=True) as (store, _):
        await fill(store, open_orders(store), 0, 10)
        await store.checkpoint()
        deletion = store.delete_log(tp, TOPIC_ID)
        again = open_orders(store)
        assert again.log_end_offset == 0
        for _ in range(appends):
            append(again, b"value-0")
        await deletion
        await store.wal.drained()
        await store.flusher.flushed()
        assert await read_values(again) == numbered(0, appends)
    async with opened(tmp_path) as (store, _):
        assert await read_values(open_orders(store)) == numbered(0, appends)


async def test_a_new_log_that_begins_behind_zero_is_known_after_a_crash(tmp_path: Path) -> None:
    """A replica that is added where the leader has deleted the beginning."""
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        log.restart_at(100)
        append(log, b"value-100")
        await store.wal.drained()
    async with opened(tmp_path) as (store, report):
        log = open_orders(store)
        assert (log.log_start_offset, log.log_end_offset) == (100, 101)
        assert not report.gaps


async def test_what_a_deleted_log_had_in_memory_counts_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        for _ in range(5):
            append(log, b"x" * 1000)
        await store.wal.drained()
        await store.delete_log(TopicPartition("orders", 0), TOPIC_ID)
        await store.flusher.flushed()
        assert store.flusher.unflushed_bytes == 0


async def test_the_queue_says_when_it_is_full(tmp_path: Path) -> None:
    """S04: a full queue is visible, and the waiter is called once there is room."""
    options = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], queue_depth=5, file_bytes=1 << 20))
    async with opened(tmp_path, options) as (store, _):
        log = open_orders(store)
        for _ in range(6):
            append(log, b"x")
        assert store.wal.pressure.full
        room = asyncio.Event()
        store.wal.pressure.when_room(room.set)
        await asyncio.wait_for(room.wait(), 5)
        assert not store.wal.pressure.full


async def test_one_sync_serves_many_partitions(tmp_path: Path) -> None:
    """L01: a round is one sync whatever the number of partitions."""
    async with opened(tmp_path, disk_type=DiskSpy) as (store, _):
        disk = store.disk
        assert isinstance(disk, DiskSpy)
        logs = [store.open_log(TopicPartition("many", p), TOPIC_ID, LogConfig()) for p in range(200)]
        await append_durably(store, logs[0], b"the first round also makes the file")
        for size in (1, 1_000):  # a round on the loop, and one in the I/O thread
            syncs, rounds = disk.wal_syncs, store.wal.stats.rounds
            ends = [log.log_end_offset for log in logs]
            for log in logs:
                append(log, b"x" * size)
            await store.wal.drained()
            assert (disk.wal_syncs - syncs, store.wal.stats.rounds - rounds) == (1, 1)
            assert [log.durable_end_offset for log in logs] == [end + 1 for end in ends]


async def read_by_recovery(root: Path, flushed: int) -> Counter[str]:
    """Bytes that a start after a crash reads, by kind of file, with so many batches below the checkpoint."""
    options = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=1 << 18))
    config = LogConfig(segment_bytes=1 << 20)
    value = b"x" * 10_000
    async with opened(root, options, crash=True) as (store, _):
        log = open_orders(store, config)
        for _ in range(flushed):
            append(log, value)
            await store.wal.drained()
        for _ in ("the newest", "the one to fall back on"):
            await store.checkpoint()
        for _ in range(5):
            await append_durably(store, log, value)
        end = log.log_end_offset
    async with opened(root, options, disk_type=DiskSpy) as (store, report):
        assert isinstance(store.disk, DiskSpy)
        log = open_orders(store, config)
        assert (log.log_end_offset, report.entries) == (end, 5)
        read = Counter[str]()
        for path, size in store.disk.read_bytes.items():
            read[path.suffix] += size
        assert len(log.segments) >= flushed // 200, "the data is there"
    return read


async def test_recovery_reads_the_tail_and_not_the_data(tmp_path: Path) -> None:
    """L02: ten times the data below the checkpoint, the same behind it."""
    few, many = [await read_by_recovery(tmp_path / str(count), count) for count in (200, 2_000)]
    assert sum(few.values()) > 5 * 10_000
    assert sum(many.values()) <= 1.2 * sum(few.values()), (few, many)


@pytest.mark.parametrize("seed", range(15))
def test_random_work_with_crashes_matches_a_model(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    rng = random.Random(seed)
    model: list[bytes] = []
    config = LogConfig(segment_bytes=rng.choice([500, 5_000, 10**9]))
    options = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=rng.choice([3_000, 1 << 20])))

    async def session() -> None:
        async with opened(tmp_path, options, crash=rng.random() < 0.7) as (store, report):
            assert report.damage == []
            log = open_orders(store, config)
            assert await read_values(log) == [
                (i, v) for i, v in enumerate(model) if i >= log.log_start_offset
            ]
            for _ in range(rng.randrange(30)):
                action = rng.random()
                if action < 0.75:
                    values = [rng.randbytes(rng.randrange(1, 300)) for _ in range(rng.randrange(1, 4))]
                    append(log, *values)
                    model.extend(values)
                elif action < 0.85:
                    await store.checkpoint()
                elif action < 0.9 and model:
                    await store.wal.drained()
                    await log.advance_start(rng.randrange(log.log_start_offset, log.log_end_offset + 1))
                else:
                    await store.flusher.flushed()
            await store.wal.drained()

    for _ in range(6):
        asyncio.run(session())


async def test_a_topic_made_again_under_its_old_name_starts_empty(tmp_path: Path) -> None:
    other = UUID(int=78)
    tp = TopicPartition("orders", 0)
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        await fill(store, log, 0, 10)
        await store.flusher.flushed()
        deletion = store.delete_log(tp, TOPIC_ID)
        again = store.open_log(tp, other, LogConfig())
        append(again, b"value-0")
        await store.wal.drained()
        await deletion
        await store.flusher.flushed()
        assert await read_values(again) == numbered(0, 1)
    async with opened(tmp_path) as (store, _):
        store.forget_missing(lambda topic_id, _: topic_id == other.bytes)
        assert await read_values(store.open_log(tp, other, LogConfig())) == numbered(0, 1)


async def test_a_replica_that_moved_away_while_the_node_was_down_is_not_remembered_without_its_files(
    tmp_path: Path,
) -> None:
    """It may come back after another crash: a log that claims records it has not would count as in sync."""
    tp = TopicPartition("orders", 0)

    async with opened(tmp_path) as (store, _):
        await fill(store, open_orders(store), 0, 10)
    async with opened(tmp_path, crash=True) as (store, _):
        store.forget_missing(lambda topic_id, _: False)
        await store.wal.drained()
        await store.disk.run(IoThread.BACKGROUND, lambda: None)  # where files are removed, in their order
        assert not log_directory(tmp_path, tp).exists()
    async with opened(tmp_path) as (store, _):
        again = store.open_log(tp, TOPIC_ID, LogConfig())
        assert (again.log_start_offset, again.log_end_offset) == (0, 0)
        assert await read_values(again) == []


class _NearlyFull(RealDisk):
    def usage(self, directory: Path) -> tuple[int, int]:
        return 1 << 30, 0


@pytest.mark.parametrize("damaged", ["checkpoint", "checkpoint.former"])
def test_a_wal_file_that_made_room_is_needed_by_neither_checkpoint(tmp_path: Path, damaged: str) -> None:
    values = [b"%04d" % number + b"x" * 20_000 for number in range(150)]  # three WAL files

    async def fill() -> None:
        async with opened(tmp_path, crash=True) as (store, _):
            log = open_orders(store)
            for value in values:
                await append_durably(store, log, value)
            assert len(store.wal.files) >= 3

    async def recover_on_a_full_disk() -> None:
        disk = _NearlyFull(asyncio.get_running_loop())
        try:
            _Recovery(disk, tmp_path, OPTIONS).run()
        finally:
            disk.close()

    async def read_back() -> None:
        async with opened(tmp_path) as (store, _):
            assert [value for _, value in await read_values(open_orders(store))] == values

    asyncio.run(fill())
    files = sorted((tmp_path / "wal").glob("0*.wal"))
    asyncio.run(recover_on_a_full_disk())
    assert not files[0].exists(), "no room was made"
    (tmp_path / damaged).write_bytes(b"bit rot")
    asyncio.run(read_back())


def test_recovery_takes_memory_for_a_part_of_the_wal_only(tmp_path: Path) -> None:
    """T21: a node must come up on a machine that is smaller than its WAL."""
    options = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=8 << 20))
    count, size = 60, 1 << 20

    async def fill() -> None:
        async with opened(tmp_path, options, crash=True) as (store, _):
            log = open_orders(store)
            for _ in range(count):
                await append_durably(store, log, bytes(size))

    async def recover() -> int:
        tracemalloc.start()
        try:
            async with opened(tmp_path, options) as (store, report):
                assert open_orders(store).log_end_offset == count
                assert report.bytes > count * size
                return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    asyncio.run(fill())
    assert asyncio.run(recover()) < count * size / 2


async def test_a_log_that_was_cut_and_deleted_does_not_keep_a_node_from_starting(tmp_path: Path) -> None:
    """Its files are gone when the WAL says once more how they were cut."""
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        await fill(store, log, 0, 10)
        await store.checkpoint()
        log.truncate(7)
        await fill(store, log, 7, 12)
        await store.delete_log(TopicPartition("orders", 0), TOPIC_ID)
        await store.wal.drained()
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        assert log.log_end_offset == 0
        await fill(store, log, 0, 3)
    async with opened(tmp_path) as (store, _):
        assert await read_values(open_orders(store)) == numbered(0, 3)


async def test_no_checkpoint_vouches_for_segments_whose_sync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system drops pages that it could not write, and the next sync succeeds without them."""
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        await fill(store, log, 0, 10)
        await store.flusher.flushed()

        def broken(_file: RealFile) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(RealFile, "sync", broken)
            with pytest.raises(OSError, match="Input/output error"):
                await store.checkpoint()
        segment = log.segments[0].path
        await fill(store, log, 10, 20)
        with pytest.raises(StorageError, match="in doubt"):
            await store.checkpoint()
    segment.write_bytes(bytes(segment.stat().st_size))  # what the system dropped
    async with opened(tmp_path) as (store, _):
        assert await read_values(open_orders(store)) == numbered(0, 20)
        await store.checkpoint()


async def test_segments_are_loaded_once_however_many_threads_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two lists, a batch noted in the one is written over by the next one of the other."""
    async with opened(tmp_path) as (store, _):
        await append_durably(store, open_orders(store), b"first")
    loads: list[int] = []
    first, second, go_on = threading.Event(), threading.Event(), threading.Event()

    def slow(*arguments: Any) -> list[Segment]:
        loads.append(threading.get_ident())
        (first if len(loads) == 1 else second).set()
        go_on.wait(10)
        return load_segments(*arguments)

    monkeypatch.setattr("chronik.storage.log.load_segments", slow)
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        assert not log.is_loaded
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(lambda: log.segments)
            assert first.wait(10)
            other = pool.submit(lambda: log.segments)
            second.wait(0.2)  # long enough for another load to begin, if it is not kept from it
            go_on.set()
            assert one.result() is other.result()
        assert len(loads) == 1
