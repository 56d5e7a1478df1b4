"""Latencies are known to a thousandth, and count from when a record was due."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.cli.latencies import Latencies
from chronik.cli.pacing import closed_loop, open_loop


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=200), st.floats(0, 1))
def test_quantiles_are_those_of_the_values_to_a_thousandth(values: list[int], share: float) -> None:
    seen = Latencies()
    for value in values:
        seen.observe(value)
    place = max(1, -int(-share * len(values) // 1))
    exact = sorted(values)[min(place, len(values)) - 1]
    assert exact <= seen.quantile_us(share) <= exact * (1 + 1 / 1024) + 1
    assert seen.max_us == max(values)
    assert sum(count for _, count in seen.buckets()) == len(values)


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


async def test_a_pause_counts_for_every_record_that_was_due_in_it() -> None:
    """A sender that measured from the moment of sending would see one slow record and 99 fast ones."""
    clock, seen = Clock(), Latencies()
    number = 0

    async def send(due: float) -> None:
        nonlocal number
        number += 1
        clock.time += 0.5 if number == 10 else 0.0001
        seen.observe(round((clock.time - due) * 1_000_000))

    sent = await open_loop(send, rate=100, seconds=1.0, now=clock.now, sleep=clock.sleep)
    assert sent == 100
    slow = sum(count for upper_us, count in seen.buckets() if upper_us > 10_000)
    assert 48 <= slow <= 51
    assert seen.quantile_us(0.99) == pytest.approx(490_000, rel=0.05)


async def test_a_closed_loop_has_so_many_under_way_and_no_more() -> None:
    clock, under_way, most = Clock(), 0, 0

    async def send(_due: float) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        clock.time += 0.01
        under_way -= 1

    await closed_loop(send, workers=7, seconds=1.0, now=clock.now)
    assert (most, under_way) == (7, 0)
