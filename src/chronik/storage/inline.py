"""Whether small commit rounds are written on the loop or in the WAL's lane. Pure: told how long they took.

To hand a round to a thread and back takes two wake-ups and two fights for the interpreter lock; on a machine
without a free core that is longer than the sync itself. On the loop nothing else happens meanwhile. So rounds
stay there while they are quick, and also while they are slower but too rare to keep the loop from its work.
A disk that turns out slow gets its rounds in the lane, for a while.
"""

from __future__ import annotations

from typing import Final

SECONDS_ALWAYS: Final = 0.0005
"""Rounds that take no longer on average belong on the loop, however many there are."""
SECONDS_MAX: Final = 0.002
"""Rounds that take longer on average do not, however few there are."""
SHARE_MAX: Final = 0.6
"""Those between may take this share of the loop's time."""
WINDOW_SECONDS: Final = 0.25
"""The share is looked at over so long: rounds come in bursts."""
PAUSE_SECONDS: Final = 1.0
_WEIGHT: Final = 1 / 16
_SAMPLE_SECONDS_MAX: Final = 2 * SECONDS_MAX
"""A single slow round counts no more than this: one stall of the device does not make it a slow one."""


class Inline:
    __slots__ = ("_from", "_window_ends", "_window_used", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long a round on the loop takes, on average, the latest ones above all."""
        self._window_ends = 0.0
        self._window_used = 0.0
        self._from = 0.0

    def may(self, now: float) -> bool:
        """Whether a round that starts now should be written on the loop."""
        return now >= self._from

    def took(self, started: float, ended: float) -> None:
        """A round was written on the loop."""
        taken = min(ended - started, _SAMPLE_SECONDS_MAX)
        self.seconds += (taken - self.seconds) * _WEIGHT
        if started >= self._window_ends:
            self._window_ends, self._window_used = started + WINDOW_SECONDS, 0.0
        self._window_used += taken
        is_often = self._window_used > SHARE_MAX * WINDOW_SECONDS
        if self.seconds > SECONDS_MAX or (is_often and self.seconds > SECONDS_ALWAYS):
            self.seconds = self._window_ends = 0.0
            self._from = ended + PAUSE_SECONDS
