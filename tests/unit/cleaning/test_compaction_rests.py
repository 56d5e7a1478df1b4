"""Compaction stands back while somebody writes, and hurries when it cannot follow."""

from __future__ import annotations

from chronik.cleaning.compactor import Pace, Rests

PACE = Pace()


def test_it_stands_back_until_nobody_has_written_for_a_while() -> None:
    rests = Rests()
    assert rests.after_step(PACE, 0.0, wal_rounds=0) == PACE.rest_seconds
    assert rests.after_step(PACE, 0.1, wal_rounds=1) > PACE.rest_seconds
    # A client that sends a record every hundred milliseconds is one that writes, between its records too.
    assert rests.after_step(PACE, 0.2, wal_rounds=1) > PACE.rest_seconds
    assert rests.after_step(PACE, 1.0, wal_rounds=1) == PACE.rest_seconds


def test_the_longer_it_takes_the_less_it_rests_down_to_what_an_idle_node_gets() -> None:
    rests = Rests(began=0.0)
    times = (0, 10, 60, 120, 600, 100_000)
    found = [rests.after_step(PACE, now, wal_rounds=n + 1) for n, now in enumerate(times)]
    assert found[0] == PACE.rest_busy_seconds
    assert found[2] == PACE.rest_busy_seconds / 2
    assert found == sorted(found, reverse=True)
    assert found[-1] == PACE.rest_seconds
