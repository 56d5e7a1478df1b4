"""Lines that repeat are told once a minute, with a count."""

from __future__ import annotations

import logging

import pytest

from chronik import log_lines
from chronik.log_lines import RepeatingLine


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def line(clock: Clock) -> RepeatingLine:
    return RepeatingLine(logging.getLogger("test"), logging.WARNING, "%s waits for %s", now=clock)


def test_an_hour_of_retries_is_sixty_lines(
    line: RepeatingLine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(3600):
        clock.seconds = second
        line("orders", "orders", "a replica")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 60
    assert told[:2] == ["orders waits for a replica", "orders waits for a replica (60 times in 60 s)"]


def test_subjects_do_not_hide_each_other(
    line: RepeatingLine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for subject in ("orders", "payments", "orders"):
        line(subject, subject, "a replica")
    assert [record.getMessage() for record in caplog.records] == [
        "orders waits for a replica",
        "payments waits for a replica",
    ]


def test_subjects_are_bounded(
    line: RepeatingLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_lines, "SUBJECTS_MAX", 2)
    for subject in ("a", "b", "c", "a"):
        line(subject, subject, "x")
    assert len(caplog.records) == 4
    assert len(line._logged) == 2
