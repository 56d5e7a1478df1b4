"""Which files took longest, and when each worker had nothing left: what makes a run of all tests shorter.

Fixtures count where they were made: what a file shares with others stands with the first of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

FILES_TOLD = 15
LONG_RUN_S = 120
"""A shorter run has nobody who waits for it."""


def summary(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Lines for the end of a run; none after a short one."""
    seconds: defaultdict[str, float] = defaultdict(float)
    ends: dict[str, float] = {}
    began = float("inf")
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration
        worker = getattr(report, "worker_id", "the only worker")
        ends[worker] = max(report.stop, ends.get(worker, 0))
        began = min(report.start, began)
    if sum(seconds.values()) < LONG_RUN_S:
        return []
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:FILES_TOLD]
    return [
        *(f"{taken:7.1f} s  {file}" for file, taken in longest),
        *(f"{end - began:7.1f} s  until {worker} had ended" for worker, end in sorted(ends.items())),
    ]
