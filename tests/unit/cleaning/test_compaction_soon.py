"""What is eligible when the cleaner looks is compacted in that look, not two checkpoints later."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tests.unit.replication.support import Clock, Replicas, cleaner, put
from tests.unit.storage.support import opened
from tests.unit.storage.test_compaction import EAGER, view

SOON = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "segment_ms": 1_000}


async def test_one_look_ends_old_segments_and_compacts_them(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, crash=True) as (store, _):
        replicas = Replicas(store)
        partitions = [replicas.add("t", number, **SOON) for number in range(3)]
        for partition in partitions:
            for i in range(10):
                put(partition, (b"k", b"%d" % i), now_ms=clock.now_ms)
        await store.wal.drained()
        await store.flusher.flushed()
        clock.now_ms += 2_000
        await cleaner(replicas, clock, pace=EAGER).compact()
        assert [await view(partition) for partition in partitions] == [[(9, b"k", b"9")]] * 3
    # A power loss right after it: recovery from either checkpoint finds the same.
    for lost in (False, True):
        async with opened(tmp_path, crash=True) as (store, _):
            again = [Replicas(store).add("t", number, **SOON) for number in range(3)]
            assert [await view(partition) for partition in again] == [[(9, b"k", b"9")]] * 3
            if not lost:
                (tmp_path / "checkpoint").write_bytes(b"damaged")


async def test_a_round_that_finds_nothing_to_do_writes_no_checkpoint(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **SOON)
        put(partition, (b"k", b"1"), now_ms=clock.now_ms)
        await store.wal.drained()
        tidy = cleaner(replicas, clock, pace=EAGER)
        await tidy.compact()
        await tidy.compact()
        assert store.checkpoint_age() == math.inf
        assert tidy.stats.compactions == 0


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 1_763_000_000])
async def test_a_log_without_timestamps_is_not_dirty_since_1970(tmp_path: Path, timestamp_ms: int) -> None:
    """max.compaction.lag.ms counts from the last write to the file when no timestamp can be believed."""
    lag_ms = 3_600_000
    lazy = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1", "max_compaction_lag_ms": lag_ms}
    clock = Clock(1_700_000_000_000)
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **lazy)
        for i in range(10):
            put(partition, (b"k", b"%d" % i), now_ms=timestamp_ms)
        await store.wal.drained()
        partition.log.roll(partition.log.log_end_offset)
        await store.flusher.flushed()
        os.utime(partition.log.segments[0].path, ns=(0, clock.now_ms * 1_000_000))
        tidy = cleaner(replicas, clock, pace=EAGER)
        clock.now_ms += lag_ms
        await tidy.compact()
        assert tidy.stats.compactions == 0
        clock.now_ms += 1
        await tidy.compact()
        assert tidy.stats.compactions == 1
        assert await view(partition) == [(9, b"k", b"9")]
