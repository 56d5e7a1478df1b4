"""Whether small commit rounds are written on the loop or in the WAL's thread. Pure: the caller measures them.

To hand a round to a thread and back takes two wake-ups and two fights for the interpreter lock; on a machine
without a free core that is longer than the sync itself. On the loop nothing else happens meanwhile. So rounds
stay there while they are quick, and also while they are slower but too rare to keep the loop from its work.
A disk that turns out slow gets its rounds in the I/O thread, for a while.
"""

from __future__ import annotations

from typing import Final

SECONDS_ALWAYS: Final = 0.0005
"""While the average round takes at most this long, rounds are written on the loop, however many there are."""
SECONDS_MAX: Final = 0.002
"""When the average round takes longer than this, rounds go to the I/O thread, however few there are."""
SHARE_MAX: Final = 0.6
"""When the average lies between the two, rounds may take this share of the loop's time."""
WINDOW_SECONDS: Final = 0.25
"""Window over which `SHARE_MAX` is measured, since rounds come in bursts."""
PAUSE_SECONDS: Final = 1.0
_WEIGHT: Final = 1 / 16
_SAMPLE_SECONDS_MAX: Final = 2 * SECONDS_MAX
"""Most that one round adds to the average, so that a single stall does not mark the device as slow."""


class Inline:
    __slots__ = ("_from", "_window_ends", "_window_used", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Moving average of how long a round on the loop takes."""
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
