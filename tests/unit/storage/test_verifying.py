"""The check of a running node's closed segments: what was planted is found, what moves on is not (O03)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from chronik.storage import verifying
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.store import LogStore
from chronik.storage.verifying import SegmentCheck, Verifier
from tests.segments import flip_bit
from tests.unit.storage.support import append_durably, open_orders, opened

CONFIG = LogConfig(segment_bytes=7_000, index_interval_bytes=1_000)
BATCHES = 40
VALUE = b"v" * 900


@contextlib.asynccontextmanager
async def filled(root: Path) -> AsyncIterator[tuple[LogStore, PartitionLog, Verifier]]:
    async with opened(root) as (store, _):
        log = open_orders(store, CONFIG)
        for number in range(BATCHES):
            await append_durably(store, log, VALUE, timestamp_ms=1_000 + number)
        await store.checkpoint()
        verifier = Verifier(store, lambda: 5)
        yield store, log, verifier
        await verifier.close()


async def verified(verifier: Verifier) -> SegmentCheck:
    assert verifier.start()
    await verifier._tasks.finished()
    assert not verifier.is_running
    return verifier.report


def on_filled(root: Path, plant: Callable[[PartitionLog], None]) -> SegmentCheck:
    async def work() -> SegmentCheck:
        async with filled(root) as (_, log, verifier):
            plant(log)
            return await verified(verifier)

    return asyncio.run(work())


def test_sound_segments_have_no_findings_and_the_active_one_is_not_read(tmp_path: Path) -> None:
    closed: list[int] = []
    report = on_filled(tmp_path, lambda log: closed.extend(one.written_bytes for one in log.segments[:-1]))
    assert (report.state, report.findings, report.problem) == ("done", [], None)
    assert (report.segments_done, report.bytes_done) == (len(closed), sum(closed))
    assert (report.partitions, report.partitions_done, report.ended_ms) == (1, 1, 5)


@pytest.mark.parametrize("byte", [200, 3, 9])
def test_damage_is_told_by_file_byte_and_offset(tmp_path: Path, byte: int) -> None:
    """In a record's value, in the batch's offset, which stands outside its checksum, and in its length."""
    place: list[int] = []

    def plant(log: PartitionLog) -> None:
        found = log.segments[2].locate(log.segments[2].base_offset + 1)
        assert found is not None
        place.extend((found[0], found[1].base_offset))
        flip_bit(log.segments[2].path, found[0] + byte)

    report = on_filled(tmp_path, plant)
    (found,) = report.findings
    assert (found.kind, found.position, found.offset) == ("damaged segment", *place)
    assert (found.topic, found.partition, report.finding_count) == ("orders", 0, 1)
    assert (tmp_path / found.file).stem == f"{place[1] - 1:020d}"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_does_not_fit_its_log(tmp_path: Path, suffix: str) -> None:
    """Byte 3 is in the first entry's offset, or in its timestamp."""
    report = on_filled(tmp_path, lambda log: flip_bit(log.segments[1].path.with_suffix(suffix), 3))
    (found,) = report.findings
    assert (found.kind, Path(found.file).suffix) == ("damaged index", suffix)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    report = on_filled(tmp_path, lambda log: log.segments[0].path.unlink())
    assert [one.kind for one in report.findings] == ["unreadable file"]


def test_what_is_cut_meanwhile_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> SegmentCheck:
        async with filled(tmp_path) as (_, log, verifier):
            flip_bit(log.segments[1].path, 200)
            look = verifier._look

            def cut_after(*given: object, **how: object) -> object:
                found = look(*given, **how)  # type: ignore[arg-type]
                if found:
                    cut.set()
                    done.wait(10)
                return found

            cut, done = threading.Event(), threading.Event()
            monkeypatch.setattr(verifier, "_look", cut_after)
            verifier.start()
            await asyncio.to_thread(cut.wait, 10)
            log.truncate(log.segments[1].base_offset)
            done.set()
            await verifier._tasks.finished()
            return verifier.report

    report = asyncio.run(work())
    assert (report.findings, report.changed_meanwhile) == ([], 1)


def test_one_run_at_a_time_which_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "RESTS_PER_WORK", 1e9)
    monkeypatch.setattr(verifying, "REST_SECONDS_MAX", 60.0)

    async def work() -> None:
        async with filled(tmp_path) as (_, _log, verifier):
            assert not verifier.cancel()
            assert verifier.start()
            assert not verifier.start()
            assert verifier.cancel()
            await verifier._tasks.finished()
            assert verifier.report.state == "cancelled"
            monkeypatch.undo()
            assert (await verified(verifier)).state == "done"

    asyncio.run(asyncio.wait_for(work(), 30))


def test_findings_are_bounded_and_all_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "FINDINGS_KEPT_MAX", 2)

    def plant(log: PartitionLog) -> None:
        for segment in log.segments[:4]:
            flip_bit(segment.path, 100)

    report = on_filled(tmp_path, plant)
    assert (len(report.findings), report.finding_count) == (2, 4)
