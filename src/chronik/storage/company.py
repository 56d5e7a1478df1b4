"""How many entries a small commit round waits for. Pure: told what happens, asked how many are expected.

Clients that are answered together come back together: a producer with five requests under way sends five
more. A sync costs more than the moment in which they arrive, so a round waits for as many entries as usually
come in time. How many that are is found out by expecting one more now and then, and fewer when they stay
away or come so late that a round of their own would have been quicker.
"""

from __future__ import annotations

from typing import Final

LUCK_MIN: Final = 0.9
"""Waiting in vain costs about ten times what a saved sync is worth."""
LUCK_WEIGHT: Final = 1 / 16
TRIAL_ROUNDS_MIN: Final = 64
TRIAL_ROUNDS_FIRST: Final = 256
TRIAL_ROUNDS_MAX: Final = 1024


class Company:
    __slots__ = ("_luck", "_rounds_after_failure", "_rounds_to_trial", "expected")

    def __init__(self) -> None:
        self.expected = 1
        """With so many entries a round should start at once; with fewer it should wait."""
        self._luck = 1.0
        """Share of the waits that brought everybody in time, the latest ones above all."""
        self._rounds_to_trial = TRIAL_ROUNDS_FIRST
        self._rounds_after_failure = TRIAL_ROUNDS_FIRST

    def came(self, *, in_time: bool) -> None:
        """A round waited until as many were there as were expected."""
        if in_time:
            self._luck += (1 - self._luck) * LUCK_WEIGHT
        else:
            self._in_vain(self.expected - 1)

    def stayed_away(self, entries: int) -> None:
        """A round waited as long as it may, and only so many came."""
        self._in_vain(entries)

    def _in_vain(self, entries: int) -> None:
        self._luck -= self._luck * LUCK_WEIGHT
        if self._luck < LUCK_MIN:
            self._luck = 1.0
            self.expected = entries
            self._rounds_to_trial = self._rounds_after_failure
            self._rounds_after_failure = min(4 * self._rounds_after_failure, TRIAL_ROUNDS_MAX)

    def round_done(self) -> None:
        self._rounds_to_trial -= 1
        if self._rounds_to_trial == 0:
            self.expected += 1
            self._rounds_to_trial = TRIAL_ROUNDS_MIN
