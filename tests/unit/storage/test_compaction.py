"""Compaction of single logs: what stays, what goes, what a crash leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.cleaning.compactor import Pace
from chronik.model import StorageError
from chronik.records.batch import BatchHeader, check_batch, headers
from chronik.records.body import body_of
from chronik.records.compression import Compression
from chronik.records.editing import delete_horizon_ms, keys_of, raw_records
from chronik.records.reader import Record, read_records
from chronik.records.writer import build_batch, build_marker
from chronik.replication.partition import Partition
from chronik.storage import reading
from chronik.storage.cleanable import load_position
from chronik.storage.compaction import Compaction, SegmentGroup
from chronik.storage.keymap import BYTES_PER_KEY, KeyMap
from chronik.storage.segment import Segment
from chronik.storage.store import LogStore
from tests.unit.replication.support import Clock, Replicas, cleaner, put
from tests.unit.storage.support import opened

EAGER = Pace(bytes_per_second=1e12, rest_seconds=0, rest_busy_seconds=0, checkpoint_seconds=0)


async def batches_of(partition: Partition) -> list[tuple[BatchHeader, bytes]]:
    log = partition.log
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        before = offset
        part = await reading.read(log, offset, 5_000, log.log_end_offset)
        for buffer in part.buffers:
            for position, header in headers(buffer):
                batch = bytes(buffer[position : position + header.size_bytes])
                check_batch(batch)
                if header.next_offset > offset:
                    found.append((header, batch))
                    offset = header.next_offset
        if offset == before:
            break
    return found


def records_in(batches: list[tuple[BatchHeader, bytes]]) -> Iterator[tuple[int, bytes, bytes | None]]:
    for header, batch in batches:
        if not header.is_control and header.record_count:
            for record in read_records(batch):
                assert record.key is not None
                yield record.offset, record.key, record.value


async def view(partition: Partition) -> list[tuple[int, bytes, bytes | None]]:
    return list(records_in(await batches_of(partition)))


async def close_segment(store: LogStore, partition: Partition) -> None:
    """End the active segment and let both checkpoints know."""
    await store.wal.drained()
    partition.log.roll(partition.log.log_end_offset)
    await store.flusher.flushed()
    await store.checkpoint()
    await store.checkpoint()


async def compact(replicas: Replicas, clock: Clock, **pace: object) -> None:
    chosen = Pace(**{**{s: getattr(EAGER, s) for s in EAGER.__slots__}, **pace})  # type: ignore[arg-type]
    await cleaner(replicas, clock, pace=chosen).compact()


COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "segment_bytes": 1 << 20}


async def test_only_the_last_record_of_each_key_stays_where_it_was(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, crash=True) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED)
        for i in range(100):
            put(partition, (b"key-%d" % (i % 7), b"value-%d" % i), now_ms=clock.now_ms)
        await close_segment(store, partition)
        put(partition, (b"key-3", b"young"), now_ms=clock.now_ms)
        await store.wal.drained()
        await compact(replicas, clock)
        expected = [(i, b"key-%d" % (i % 7), b"value-%d" % i) for i in range(93, 100)]
        expected.append((100, b"key-3", b"young"))  # the active segment is left alone
        assert await view(partition) == expected
        assert partition.log_end_offset == 101
        assert (partition.log_start_offset, partition.high_watermark) == (0, 101)
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("t", **COMPACTED)
        assert await view(partition) == expected
        assert partition.log_end_offset == 101


@pytest.mark.parametrize("codec", list(Compression))
async def test_batches_keep_offsets_timestamps_headers_and_codec(tmp_path: Path, codec: Compression) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED)
        records = [
            Record(
                key=b"k%d" % (i % 30),
                value=b"value " * i,
                timestamp_ms=clock.now_ms - 50 + i,
                headers=(("h", b"%d" % i),),
            )
            for i in range(40)
        ]
        batch = build_batch(records, compression=codec, leader_epoch=0)
        partition.log.append(memoryview(batch), check_batch(batch), 0, clock.now_ms)
        await close_segment(store, partition)
        await compact(replicas, clock)
        ((header, kept),) = await batches_of(partition)
        assert (header.base_offset, header.last_offset, header.record_count) == (0, 39, 30)
        assert header.compression == codec
        assert header.max_timestamp == clock.now_ms - 50 + 39
        found = list(read_records(kept))
        assert [r.offset for r in found] == list(range(10, 40))
        assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in found] == [
            (r.key, r.value, r.timestamp_ms, r.headers) for r in records[10:]
        ]


async def test_tombstones_stay_for_their_time_and_go_without_new_records(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED, delete_retention_ms=10_000)
        put(partition, (b"gone", b"x"), (b"kept", b"y"), now_ms=clock.now_ms)
        put(partition, (b"gone", None), (b"other", b"z"), now_ms=clock.now_ms)
        await close_segment(store, partition)
        await compact(replicas, clock)
        horizon = clock.now_ms + 10_000
        after = [(1, b"kept", b"y"), (2, b"gone", None), (3, b"other", b"z")]
        assert await view(partition) == after
        assert [delete_horizon_ms(header) for header, _ in await batches_of(partition)] == [None, horizon]
        timestamps = [r.timestamp_ms for _, batch in await batches_of(partition) for r in read_records(batch)]
        assert timestamps == [clock.now_ms] * 3
        clock.now_ms = horizon - 1
        await compact(replicas, clock)
        assert await view(partition) == after
        clock.now_ms = horizon
        await compact(replicas, clock)
        assert await view(partition) == [(1, b"kept", b"y"), (3, b"other", b"z")]


async def test_small_neighbours_become_one_segment_and_an_empty_stretch_none(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **{**COMPACTED, "segment_bytes": 2_000})
        for i in range(100):
            put(partition, (b"same", b"v" * 30 + b"%d" % i), now_ms=clock.now_ms)
        await close_segment(store, partition)
        before = len(partition.log.segments)
        assert before > 5
        await compact(replicas, clock)
        assert [offset for offset, _, _ in await view(partition)] == [99]
        assert len(partition.log.segments) == 2  # the last group, and the active segment
        on_disk = sorted(path.name for path in partition.log.directory.iterdir() if path.suffix == ".log")
        assert len(on_disk) <= 2
        assert not [
            p for p in partition.log.directory.iterdir() if p.suffix in (".swap", ".cleaned", ".drop")
        ]


async def test_an_interrupted_compaction_leaves_its_position_behind_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what it removed can be told from what is lost; and the next one ends it."""
    clock = Clock()
    config = {**COMPACTED, "segment_bytes": 2_000, "delete_retention_ms": 0}
    commit, committed = Compaction.commit, []

    def fail_at_the_third(compaction: Compaction, group: SegmentGroup) -> tuple[bool, Segment | None]:
        if len(committed) == 2:
            raise StorageError("the node ends here")
        committed.append(group)
        return commit(compaction, group)

    async with opened(tmp_path, crash=True) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **config)
        for i in range(100):  # of each pair of records the second one stays
            put(partition, (b"key-%d" % (i // 2), b"v" * 90 + b"%d" % i), now_ms=clock.now_ms)
        await close_segment(store, partition)
        monkeypatch.setattr(Compaction, "commit", fail_at_the_third)
        await compact(replicas, clock)
        position = load_position(store.disk, partition.log.directory)
        assert len(committed) == 2
        assert position.first_dirty_offset == committed[1].end_offset
    monkeypatch.undo()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **config)
        found = [offset for offset, _, _ in await view(partition)]
        assert [one for one in found if one < position.first_dirty_offset] == list(
            range(1, position.first_dirty_offset, 2)
        )
        await compact(replicas, clock)
        assert [offset for offset, _, _ in await view(partition)] == list(range(1, 100, 2))
        assert load_position(store.disk, partition.log.directory).first_dirty_offset == 100


async def test_aborted_records_go_committed_ones_count_and_markers_outlive_their_data(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED, delete_retention_ms=10_000)

        def txn(pid: int, key: bytes, value: bytes, sequence: int, *, commit: bool) -> None:
            put(
                partition,
                (key, value),
                now_ms=clock.now_ms,
                producer_id=pid,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=True,
            )
            marker = build_marker(
                commit=commit,
                producer_id=pid,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=clock.now_ms,
            )
            partition.log.append(memoryview(marker), check_batch(marker), 0, clock.now_ms)

        txn(1, b"a", b"committed", 0, commit=True)  # 0, 1
        txn(2, b"a", b"aborted", 0, commit=False)  # 2, 3
        put(partition, (b"b", b"1"), now_ms=clock.now_ms)  # 4
        txn(1, b"c", b"first", 1, commit=True)  # 5, 6
        txn(1, b"c", b"second", 2, commit=True)  # 7, 8
        txn(2, b"z", b"aborted too", 1, commit=False)  # 9, 10
        await close_segment(store, partition)
        assert partition.last_stable_offset == 11
        assert partition.log.producers is not None
        state_before = partition.log.producers.snapshot()
        await compact(replicas, clock)
        assert partition.log.producers.snapshot() == state_before
        assert await view(partition) == [
            (0, b"a", b"committed"),
            (4, b"b", b"1"),
            (7, b"c", b"second"),
        ]
        offsets = [header.base_offset for header, _ in await batches_of(partition)]
        # 2 is aborted and not the last of its producer; 9 is, and stays as an empty batch.
        assert offsets == [0, 1, 3, 4, 6, 7, 8, 9, 10]
        put(partition, (b"b", b"2"), now_ms=clock.now_ms)  # 11
        await close_segment(store, partition)
        await compact(replicas, clock)  # markers without data get their horizon now
        assert 3 in [header.base_offset for header, _ in await batches_of(partition)]
        aborted = [
            (txn_.producer_id, txn_.first_offset) for txn_ in partition.log.producers.aborted_between(0, 99)
        ]
        assert aborted == [(2, 9)]
        clock.now_ms += 10_000
        await compact(replicas, clock)
        assert [header.base_offset for header, _ in await batches_of(partition)] == [
            0,
            1,
            7,
            8,
            9,
            10,
            11,
        ]


async def test_an_open_transaction_holds_compaction_back(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED)
        put(
            partition,
            (b"k", b"open"),
            now_ms=clock.now_ms,
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        put(partition, (b"k", b"1"), (b"k", b"2"), now_ms=clock.now_ms)
        await close_segment(store, partition)
        await compact(replicas, clock)
        assert len(await view(partition)) == 3


async def test_the_last_batch_stays_so_that_replicas_reach_the_end(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED, delete_retention_ms=0)
        put(partition, (b"a", b"1"), now_ms=clock.now_ms)
        put(partition, (b"a", None), (b"b", None), now_ms=clock.now_ms)
        await close_segment(store, partition)
        for _ in range(2):
            clock.now_ms += 1
            await compact(replicas, clock)
        assert await view(partition) == []
        ((header, _),) = await batches_of(partition)
        assert (header.base_offset, header.next_offset, header.record_count) == (1, 3, 0)


async def test_a_segment_that_a_checkpoint_cuts_is_left_alone(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, crash=True) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED)
        for i in range(10):
            put(partition, (b"k", b"%d" % i), now_ms=clock.now_ms)
        await store.checkpoint()
        put(partition, (b"k", b"10"), now_ms=clock.now_ms)
        partition.log.roll(11)
        await store.wal.drained()
        await store.flusher.flushed()
        await compact(replicas, clock, checkpoint_seconds=1e9)
        assert len(await view(partition)) == 11
        await store.checkpoint()  # the newest would do, but the one before is kept too
        await compact(replicas, clock, checkpoint_seconds=1e9)
        assert len(await view(partition)) == 11
        await store.checkpoint()
        await compact(replicas, clock, checkpoint_seconds=1e9)
        assert len(await view(partition)) == 1


async def test_lags_and_the_dirty_ratio_decide_when(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        shared = {"cleanup_policy": "compact", "segment_bytes": 1 << 20}
        lagging = replicas.add("lagging", **shared, min_cleanable_dirty_ratio=0, min_compaction_lag_ms=5_000)
        lazy = replicas.add("lazy", **shared, min_cleanable_dirty_ratio="0.5")
        urgent = replicas.add("urgent", **shared, min_cleanable_dirty_ratio="1", max_compaction_lag_ms=7_000)

        async def fill(partition: Partition, count: int) -> None:
            for i in range(count):
                put(partition, (b"key-%d" % i, b"v" * 30), now_ms=clock.now_ms)
            await close_segment(store, partition)

        for partition in (lagging, lazy, urgent):
            await fill(partition, 10)
            await fill(partition, 10)
        await compact(replicas, clock)
        assert len(await view(lagging)) == 20
        assert len(await view(lazy)) == 10  # nothing was clean: the ratio is 1
        assert len(await view(urgent)) == 20
        await fill(lazy, 5)
        await compact(replicas, clock)
        assert len(await view(lazy)) == 15  # a third of it is dirty
        await fill(lazy, 10)
        await compact(replicas, clock)
        assert len(await view(lazy)) == 10
        clock.now_ms += 5_000
        await compact(replicas, clock)
        assert len(await view(lagging)) == 10
        assert len(await view(urgent)) == 20
        clock.now_ms += 2_001
        await compact(replicas, clock)
        assert len(await view(urgent)) == 10


async def test_an_idle_compacted_log_ends_its_segment_and_is_compacted_after_a_restart(
    tmp_path: Path,
) -> None:
    clock = Clock()
    configs = {**COMPACTED, "segment_ms": 60_000}
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("t", **configs)
        for i in range(20):
            put(partition, (b"k", b"%d" % i), now_ms=clock.now_ms)
    clock.now_ms += 59_999
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **configs)
        await compact(replicas, clock)
        assert len(await view(partition)) == 20
        clock.now_ms += 1
        for _ in range(3):  # the segment ends, two checkpoints settle it
            await compact(replicas, clock)
            await store.flusher.flushed()
        assert await view(partition) == [(19, b"k", b"19")]


async def test_more_keys_than_the_map_holds_take_several_compactions(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED)
        for turn in range(2):
            for i in range(100):
                put(partition, (b"key-%d" % i, b"%d" % turn), now_ms=clock.now_ms)
        await close_segment(store, partition)
        for _ in range(8):
            await compact(replicas, clock, map_bytes_max=30 * BYTES_PER_KEY)
        assert await view(partition) == [(100 + i, b"key-%d" % i, b"1") for i in range(100)]


async def test_records_without_a_key_go_and_empty_and_long_keys_are_keys(tmp_path: Path) -> None:
    clock = Clock()
    long = [b"x" * 16, b"x" * 17, b"y" * 5_000]
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED)
        for turn in (b"0", b"1"):
            put(partition, *[(key, turn) for key in (b"", *long)], now_ms=clock.now_ms)
            put(partition, (None, b"no key"), now_ms=clock.now_ms)  # type: ignore[arg-type]
        await close_segment(store, partition)
        await compact(replicas, clock)
        assert [(key, value) for _, key, value in await view(partition)] == [
            (b"", b"1"),
            *[(k, b"1") for k in long],
        ]
        assert partition.log_end_offset == 10


@pytest.mark.parametrize("place", [3, 40, 120])
async def test_a_damaged_segment_is_left_alone_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED)
        for i in range(50):
            put(partition, (b"k", b"value-" * 20 + b"%02d" % i), now_ms=clock.now_ms)
        await close_segment(store, partition)
        path = partition.log.segments[0].path
        data = bytearray(path.read_bytes())
        data[20 * (len(data) // 50) + place] ^= 0x20
        path.write_bytes(data)
        await compact(replicas, clock)
        assert path.read_bytes() == data
        assert "is damaged" in caplog.text
        assert not list(partition.log.directory.glob("*.cleaned"))


async def test_a_damaged_batch_stops_its_own_log_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        damaged, sound = replicas.add("damaged", **COMPACTED), replicas.add("sound", **COMPACTED)
        for partition in (damaged, sound):
            for i in range(5):
                put(partition, (b"k", b"%d" % i), now_ms=clock.now_ms)
            await close_segment(store, partition)
        path = damaged.log.segments[0].path
        data = bytearray(path.read_bytes())
        data[70] ^= 1  # in the records of the first batch: its CRC is wrong now
        path.write_bytes(data)
        tidy = cleaner(replicas, clock, pace=EAGER)
        for _ in range(3):
            await tidy.compact()
            await tidy.retain()  # which has no trouble with it, and must not hide the other's
        assert [offset for offset, _, _ in await view(sound)] == [4]
        assert path.read_bytes() == data
        assert tidy.stats.failing_partitions == 1
    assert caplog.text.count("damaged-0 cannot be cleaned") == 1


async def test_a_compaction_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        first, second = replicas.add("t", **COMPACTED), replicas.add("u", **COMPACTED)
        for partition, count in ((first, 50), (second, 1)):
            for i in range(count):
                put(partition, (b"k%d" % (i % 5), b"v" * 100), now_ms=clock.now_ms)
            await close_segment(store, partition)
        before = first.size_bytes
        tidy = cleaner(replicas, clock, pace=EAGER)
        await tidy.compact()
        stats = tidy.stats
        assert (stats.compactions, stats.removed_records) == (2, 45)
        assert stats.removed_bytes == before - first.size_bytes > 0
        assert stats.compacted_bytes >= before
        assert stats.step_seconds.count >= 4
        assert not stats.is_compacting
        assert stats.dirty_ratio_max == 0
        put(first, (b"k", b"v"), now_ms=clock.now_ms)
        first.config = dataclasses.replace(first.config, min_cleanable_dirty_ratio=1.0)
        await close_segment(store, first)
        await tidy.compact()
        assert stats.compactions == 2
        assert 0 < stats.dirty_ratio_max < 1


async def test_reads_under_way_finish_on_the_old_files(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **{**COMPACTED, "segment_bytes": 3_000})
        for i in range(100):
            put(partition, (b"k%d" % (i % 3), b"v" * 40), now_ms=clock.now_ms)
        await close_segment(store, partition)
        old = list(partition.log.segments)
        await compact(replicas, clock)
        sizes = [segment.read_sound(0, segment.written_bytes) for segment in old if segment.written_bytes]
        assert [h.base_offset for data in sizes for _, h in headers(data)] == list(range(100))
        assert len(await view(partition)) == 3


async def test_the_start_may_move_past_what_is_being_compacted(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, crash=True) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **{**COMPACTED, "segment_bytes": 2_000, "file_delete_delay_ms": 0})
        for i in range(200):
            put(partition, (b"key-%d" % (i // 2), b"v" * 20), now_ms=clock.now_ms)
        await close_segment(store, partition)

        async def cut() -> None:
            for offset in (30, 77, 120):
                await asyncio.sleep(0)
                await partition.delete_records(offset, clock.now_ms)
                await store.sweep()

        await asyncio.gather(compact(replicas, clock), cut())
        expected = list(range(121, 200, 2))
        assert [o for o, _, _ in await view(partition) if o >= 120] == expected
        await store.checkpoint()
        names = sorted(p.name for p in partition.log.directory.glob("*.log"))
        live = [s.path.name for s in partition.log.segments if s.written_bytes]
        assert names == live
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("t", **COMPACTED)
        assert [o for o, _, _ in await view(partition) if o >= 120] == expected


def test_key_map_keeps_the_last_offset_of_each_key() -> None:
    rng = random.Random(5)
    keys = KeyMap(1 << 20)
    model: dict[bytes, int] = {}
    pool = [rng.randbytes(rng.choice((0, 1, 15, 16, 17, 100))) for _ in range(200)]
    for offset in range(2_000):
        key = rng.choice(pool)
        keys.put(offset, [(0, key)])
        model[key] = offset
    assert all(keys.last_offset(key) == offset for key, offset in model.items())
    assert keys.last_offset(b"never seen") == -1
    assert len(keys) == len(model)


@pytest.mark.parametrize("codec", list(Compression))
def test_raw_records_agree_with_the_plain_reader(codec: Compression) -> None:
    rng = random.Random(9)
    records = [
        Record(
            key=None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 5, 80, 300))),
            value=None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 5, 9_000))),
            timestamp_ms=rng.randrange(2**40),
            headers=(("name", None), ("x", b"y")) if rng.random() < 0.3 else (),
        )
        for _ in range(200)
    ]
    batch = build_batch(records, compression=codec, base_offset=1_000)
    header = check_batch(batch)
    body = body_of(header, batch)
    plain = list(read_records(batch))
    raw = list(raw_records(header, body))
    assert [(header.base_offset + r.offset_delta, r.key, r.has_value) for r in raw] == [
        (r.offset, r.key, r.value is not None) for r in plain
    ]
    assert list(keys_of(header, body)) == [(r.offset - 1_000, r.key) for r in plain if r.key is not None]
