"""What retention decides, against a plain model, and what it makes of real logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.storage.log import LogConfig
from chronik.storage.retention import Retention, SegmentFacts, expired, survey
from tests.unit.storage.support import append, open_orders, opened, read_values


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentFacts]:
    offset = draw(st.integers(0, 50))
    facts = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 20))
        facts.append(
            SegmentFacts(offset, offset + count, draw(st.integers(1, 100)), draw(st.integers(0, 1000)))
        )
        offset += count
    if draw(st.booleans()):  # a fresh active segment
        facts.append(SegmentFacts(offset, offset, 0, -1))
    return facts


@given(
    logs(),
    st.integers(-1, 1000),
    st.integers(-1, 400),
    st.integers(0, 200),
    st.integers(0, 1500),
)
def test_retention_keeps_what_it_must_and_nothing_it_need_not(
    facts: list[SegmentFacts], retention_ms: int, retention_bytes: int, high_watermark: int, now_ms: int
) -> None:
    retention = Retention(retention_ms=retention_ms, retention_bytes=retention_bytes)
    found = expired(facts, retention, high_watermark=high_watermark, now_ms=now_ms)
    start = None if found is None else found.start_offset
    gone = [one for one in facts if start is not None and one.next_offset <= start and one.size_bytes]
    kept = [one for one in facts if one not in gone]
    assert start is None or start == gone[-1].next_offset
    assert all(one.next_offset <= high_watermark for one in gone)

    def is_old(one: SegmentFacts) -> bool:
        return retention_ms >= 0 and now_ms - one.youngest_ms > retention_ms

    def behind(one: SegmentFacts) -> int:
        return sum(other.size_bytes for other in facts if other.base_offset > one.base_offset)

    assert all(is_old(one) or 0 <= retention_bytes <= behind(one) for one in gone)
    if kept and kept[0].size_bytes and kept[0].next_offset <= high_watermark:
        assert not is_old(kept[0])
        assert retention_bytes < 0 or behind(kept[0]) < retention_bytes


async def test_a_survey_of_a_cold_log_says_the_same_as_of_a_warm_one(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1_000)

    async with opened(tmp_path) as (store, _):
        log = open_orders(store, config)
        for i in range(100):
            append(log, b"value-%d" % i, timestamp_ms=1_000 + i * 10)
        await store.wal.drained()
        await store.flusher.flushed()
        warm = survey(log, 5_000)
        assert len(warm) > 5
        assert warm[-1].youngest_ms == 1_990
    async with opened(tmp_path) as (store, _):
        log = open_orders(store, config)
        assert survey(log, 5_000) == warm
        assert not log.is_loaded
        await log.load()
        assert survey(log, 5_000) == warm


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 1, 1_763_000_000])
async def test_records_without_a_believable_timestamp_age_from_the_last_write(
    tmp_path: Path, timestamp_ms: int
) -> None:
    """None, 0 and seconds instead of milliseconds: a restart changes nothing of their age."""

    written_ms = 1_700_000_000_000
    async with opened(tmp_path) as (store, _):
        append(open_orders(store), b"x", timestamp_ms=timestamp_ms)
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        await log.load()
        path = log.segments[0].path
        os.utime(path, ns=(0, written_ms * 1_000_000))
        for _ in range(2):
            assert survey(log, written_ms + 5_000)[0].youngest_ms == written_ms
        assert survey(log, written_ms - 5_000)[0].youngest_ms == written_ms - 5_000, "a clock went back"
        week = Retention(retention_ms=7 * 24 * 3_600_000)
        facts = survey(log, written_ms + week.retention_ms)
        assert expired(facts, week, high_watermark=1, now_ms=written_ms + week.retention_ms) is None
        gone = expired(facts, week, high_watermark=1, now_ms=written_ms + week.retention_ms + 1)
        assert gone is not None
        assert gone.rules == ("retention.ms",)


async def test_files_go_after_their_delay_and_a_checkpoint(tmp_path: Path) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in log.directory.glob("*.log"))

    async with opened(tmp_path) as (store, _):
        log = open_orders(store, LogConfig(segment_bytes=1_000, file_delete_delay_ms=0))
        for i in range(100):
            append(log, b"value-%d" % i)
        await store.wal.drained()
        await store.flusher.flushed()
        before = names()
        await log.advance_start(50)
        await store.sweep()
        assert names() == before  # recovery would look for the segment that was active at the checkpoint
        await store.checkpoint()
        assert names() == [segment.path.name for segment in log.segments]
        assert len(names()) < len(before)

        log.config = LogConfig(segment_bytes=1_000, file_delete_delay_ms=3_600_000)
        before = names()
        await log.advance_start(90)
        await store.checkpoint()
        assert names() == before
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        assert [offset for offset, _ in await read_values(log)] == list(range(90, 100))
        assert names() == [segment.path.name for segment in log.segments]


async def test_a_full_index_begins_a_new_segment(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=0, segment_index_bytes=48)
    async with opened(tmp_path) as (store, _):
        log = open_orders(store, config)
        for i in range(20):
            append(log, b"value-%d" % i, timestamp_ms=1_000 + i)
        assert len(log.segments) >= 4
        await store.wal.drained()
        await store.flusher.flushed()
        for segment in log.segments:
            for suffix in (".index", ".timeindex"):
                file = segment.path.with_suffix(suffix)
                assert not file.exists() or file.stat().st_size <= 48 + 12


async def test_jitter_takes_different_shares_off_the_age_of_segments(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        log = open_orders(store, LogConfig(segment_ms=10_000, segment_jitter_ms=5_000, segment_bytes=100))
        for i in range(20):
            append(log, b"value-%d" % i)
        ages = [log.config.segment_age_max_ms(log.tp, segment.base_offset) for segment in log.segments]
        assert all(5_000 <= age <= 10_000 for age in ages)
        assert len(set(ages)) > 10
