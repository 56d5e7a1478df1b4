"""When the indexer stands back, and when it does so no longer."""

from __future__ import annotations

from typing import cast

import pytest

from chronik.query.pacing import (
    BACKLOG_BYTES_MAX,
    BACKLOG_BYTES_MIN,
    PAUSE_SECONDS,
    SECONDS_MAX,
    IndexerPace,
    Processors,
)


class World:
    """A machine whose load changes as time passes."""

    def __init__(self, *, free: float, count: float = 2.0) -> None:
        self.now = 100.0
        self.count = count
        self.left = free
        self.free_from = float("inf")
        self.backlog_bytes = BACKLOG_BYTES_MIN
        self.pace = IndexerPace(
            lambda: self.backlog_bytes, cast(Processors, self), lambda: self.now, self.sleep
        )

    def free(self) -> float:
        return self.count if self.now >= self.free_from else self.left

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def waited(self) -> float:
        began = self.now
        self.pace.wait(lambda: False)
        return self.now - began


@pytest.mark.parametrize(("free", "count"), [(1.0, 2.0), (3.0, 64.0), (0.6, 1.0)])
def test_it_works_where_a_processor_is_left(free: float, count: float) -> None:
    assert World(free=free, count=count).waited() == 0


@pytest.mark.parametrize(("free", "count"), [(0.7, 2.0), (0.5, 64.0), (0.4, 1.0)])
def test_it_stands_back_until_one_is_left(free: float, count: float) -> None:
    world = World(free=free, count=count)
    world.free_from = world.now + 3.0
    assert world.waited() == pytest.approx(3.0, abs=2 * PAUSE_SECONDS)
    assert world.waited() == 0


def test_it_stands_back_for_so_long_and_then_catches_up() -> None:
    world = World(free=0.0)
    assert world.waited() == pytest.approx(SECONDS_MAX, abs=2 * PAUSE_SECONDS)
    assert world.waited() == 0
    world.pace.rest()
    assert world.waited() > 0


def test_a_little_is_indexed_at_once() -> None:
    world = World(free=0.0)
    world.backlog_bytes = BACKLOG_BYTES_MIN - 1
    assert world.waited() == 0


def test_it_does_not_let_the_backlog_grow_without_bound() -> None:
    world = World(free=0.0)
    world.backlog_bytes = BACKLOG_BYTES_MAX
    assert world.waited() == 0


def test_who_waits_for_the_index_does_not_wait_for_others() -> None:
    world = World(free=0.0)
    world.pace.hurry()
    assert world.waited() == 0
    world.pace.rest()
    assert world.waited() > 0


def test_it_ends_when_it_is_told_to() -> None:
    world = World(free=0.0)
    world.pace.wait(lambda: True)
    assert world.now == 100.0


def test_what_is_free_is_between_nothing_and_all() -> None:
    processors = Processors()
    assert 0 <= processors.free() <= processors.count
