"""Where small commit rounds are written: on the loop while that delays nothing, else in the WAL's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from chronik.storage.disk import IoThread, RealDisk
from chronik.storage.inline import PAUSE_SECONDS, SHARE_MAX, WINDOW_SECONDS, Inline
from tests.unit.storage.support import append_durably, open_orders, opened


class Rounds:
    """A disk that takes as long as it is told, and rounds on it."""

    def __init__(self) -> None:
        self.inline = Inline()
        self.now = 100.0
        self.on_loop = 0.0
        """Seconds that the loop spent in rounds."""
        self.in_io_thread = 0

    def run(self, *, seconds: float, rest: float, for_seconds: float) -> None:
        until = self.now + for_seconds
        while self.now < until:
            self.one(seconds)
            self.now += rest

    def one(self, seconds: float) -> None:
        started = self.now
        self.now += seconds
        if self.inline.may(started):
            self.on_loop += seconds
            self.inline.took(started, self.now)
        else:
            self.in_io_thread += 1


def test_quick_rounds_stay_on_the_loop_however_many_there_are() -> None:
    rounds = Rounds()
    rounds.run(seconds=0.0004, rest=0.0, for_seconds=5)
    assert rounds.in_io_thread == 0


def test_slower_rounds_stay_while_they_leave_the_loop_time_for_other_work() -> None:
    """Three nodes on one disk and a machine without a free core: a sync takes a millisecond, now and then."""
    rounds = Rounds()
    rounds.run(seconds=0.001, rest=0.0015, for_seconds=5)
    assert rounds.in_io_thread == 0


def test_rounds_that_come_in_bursts_are_judged_by_the_time_between_them_too() -> None:
    rounds = Rounds()
    for _ in range(100):
        rounds.run(seconds=0.001, rest=0.0, for_seconds=0.02)
        rounds.now += 0.03
    assert rounds.in_io_thread == 0


@pytest.mark.parametrize("seconds", [0.0006, 0.001, 0.0019])
def test_slower_rounds_that_fill_the_loop_go_to_the_lane(seconds: float) -> None:
    rounds = Rounds()
    rounds.run(seconds=seconds, rest=0.0002, for_seconds=60)
    share = SHARE_MAX * WINDOW_SECONDS / (SHARE_MAX * WINDOW_SECONDS + PAUSE_SECONDS)
    assert 0 < rounds.on_loop < 60 * share * 1.1


def test_slow_rounds_go_to_the_lane_however_few_there_are() -> None:
    rounds = Rounds()
    rounds.run(seconds=0.01, rest=0.2, for_seconds=60)
    assert rounds.in_io_thread > 60 / 0.21 / 4


def test_one_stall_does_not_make_a_disk_slow() -> None:
    rounds = Rounds()
    rounds.run(seconds=0.0001, rest=0.0005, for_seconds=1)
    rounds.one(0.2)
    rounds.run(seconds=0.0001, rest=0.0005, for_seconds=1)
    assert rounds.in_io_thread == 0


def test_a_disk_that_has_become_quick_gets_its_rounds_on_the_loop_again() -> None:
    rounds = Rounds()
    rounds.run(seconds=0.01, rest=0.0, for_seconds=5)
    rounds.now += PAUSE_SECONDS
    rounds.in_io_thread = 0
    rounds.run(seconds=0.0001, rest=0.0005, for_seconds=5)
    assert rounds.in_io_thread == 0


def test_the_wal_of_a_slow_disk_writes_in_its_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the records are as safe there: the store is dropped as kill -9 would, and opened again."""
    io_threads: list[IoThread] = []
    now = 0.0

    def slow_clock() -> float:
        nonlocal now
        now += 0.01
        return now

    def submit(
        disk: RealDisk, io_thread: IoThread, work: Callable[[], object], done: Callable[..., None]
    ) -> None:
        io_threads.append(io_thread)
        plain(disk, io_thread, work, done)

    plain = RealDisk.submit
    monkeypatch.setattr(RealDisk, "clock", staticmethod(slow_clock))
    monkeypatch.setattr(RealDisk, "submit", submit)

    async def write() -> None:
        async with opened(tmp_path, crash=True) as (store, _):
            log = open_orders(store)
            for number in range(30):
                await append_durably(store, log, b"%d" % number)

    async def read() -> int:
        async with opened(tmp_path) as (store, _):
            return open_orders(store).log_end_offset

    asyncio.run(write())
    assert 0 < io_threads.count(IoThread.WAL) < 30
    assert asyncio.run(read()) == 30
