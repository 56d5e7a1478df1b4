"""When the indexer pauses: while others need the processors, up to a limit of time and of backlog.

A low priority alone is not enough: the indexer would still fill the others' caches, and while it waits for a
core it may hold the interpreter's lock, for which searches then wait. Searches find records that are not
indexed yet, so the indexer may sleep instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["IndexerPace", "Processors"]

SECONDS_MAX: Final = 10.0
"""Longest pause. After it the indexer works without a pause until it has caught up."""
BACKLOG_BYTES_MIN: Final = 1024 * 1024
"""Backlogs below this are indexed without a pause."""
BACKLOG_BYTES_MAX: Final = 128 * 1024 * 1024
FREE_MIN: Final = 1.0
"""The indexer pauses while fewer processors than this are free."""
LOOK_SECONDS: Final = 0.1
RECENT_SECONDS: Final = 0.3
"""Longest interval that one sample may cover. After a longer one no processor counts as free until the next
sample."""
PAUSE_SECONDS: Final = 0.05
_STAT: Final = Path("/proc/stat")


class Processors:
    """How many processors others left free lately; all of them where the system does not tell."""

    def __init__(self) -> None:
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._free = self.count = float(os.cpu_count() or 1)
        self._seen = self._look()

    def _look(self) -> tuple[float, float, float]:
        """The time, the idle time of all processors together, and the processor time of this process."""
        try:
            fields = _STAT.read_bytes().split(b"\n", 1)[0].split()
            rested = (int(fields[4]) + int(fields[5])) / self._ticks
        except (OSError, ValueError, IndexError):
            rested = -1.0
        return time.monotonic(), rested, time.process_time()

    def free(self) -> float:
        began, rested, used = self._seen
        passed = time.monotonic() - began
        if passed >= LOOK_SECONDS and rested >= 0:
            self._seen = self._look()
            now, rested_now, used_now = self._seen
            is_recent = passed < RECENT_SECONDS
            self._free = (rested_now - rested + used_now - used) / (now - began) if is_recent else 0.0
        return self._free


class IndexerPace:
    """Asked by the indexer's thread before each piece of work."""

    def __init__(
        self,
        backlog_bytes: Callable[[], int],
        processors: Processors | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backlog_bytes = backlog_bytes
        self._processors = processors or Processors()
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._in_a_hurry = False

    def hurry(self) -> None:
        """Do not pause until the index has caught up: somebody waits for it."""
        self._in_a_hurry = True

    def rest(self) -> None:
        """Pause again as usual: the index has caught up."""
        self._since, self._in_a_hurry = None, False

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Return when it is time to work, or when `is_over`."""
        while self._stands_back() and not is_over():
            self._sleep(PAUSE_SECONDS)

    def _stands_back(self) -> bool:
        if self._in_a_hurry or not BACKLOG_BYTES_MIN <= self._backlog_bytes() < BACKLOG_BYTES_MAX:
            return False
        if self._processors.free() >= min(FREE_MIN, self._processors.count / 2):
            return False
        if self._since is None:
            self._since = self._clock()
        return self._clock() - self._since < SECONDS_MAX
