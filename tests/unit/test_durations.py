"""What a long run tells at its end (tests/durations.py)."""

from __future__ import annotations

import pytest

from tests.durations import FILES_TOLD, summary


def report(file: str, start: float, seconds: float, worker: str = "gw0") -> pytest.TestReport:
    made = pytest.TestReport(
        f"tests/{file}::test_it",
        (file, 1, "test_it"),
        {},
        "passed",
        None,
        "call",
        duration=seconds,
        start=start,
        stop=start + seconds,
    )
    made.worker_id = worker
    return made


def test_the_longest_files_and_the_end_of_each_worker_are_told() -> None:
    reports = [report("a.py", 1000, 50), report("b.py", 1050, 30), report("a.py", 1080, 40)]
    assert summary([*reports, report("c.py", 1000, 100, "gw1")]) == [
        "  100.0 s  tests/c.py",
        "   90.0 s  tests/a.py",
        "   30.0 s  tests/b.py",
        "  120.0 s  until gw0 had ended",
        "  100.0 s  until gw1 had ended",
    ]
    assert len(summary([report(f"{number}.py", 1000, 10) for number in range(50)])) == FILES_TOLD + 1


def test_a_short_run_tells_nothing() -> None:
    assert summary([report("a.py", 1000, 3)]) == []
    assert summary([]) == []
