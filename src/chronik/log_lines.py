"""Log lines that would repeat: written at once, then at most once a minute with how often they came."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["RepeatingLine"]

INTERVAL_S: Final = 60.0
SUBJECTS_MAX: Final = 1_000
"""Subjects remembered per line; the one logged longest ago is forgotten, and may be logged again early."""


class _Logged:
    __slots__ = ("at", "kept_back")

    def __init__(self, at: float) -> None:
        self.at = at
        """When the line was last written for this subject."""
        self.kept_back = 0
        """How often it came since then."""


class RepeatingLine:
    """One line of one logger. Lines about different subjects (say, transactions) do not hide each other."""

    def __init__(
        self, logger: logging.Logger, level: int, message: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._level = level
        self._message = message
        self._now = now
        self._logged: OrderedDict[Hashable, _Logged] = OrderedDict()

    def __call__(self, subject: Hashable, *args: object) -> None:
        """Log the message with `args`, unless it was logged for `subject` less than a minute ago."""
        if not self._logger.isEnabledFor(self._level):
            return
        now = self._now()
        logged = self._logged.get(subject)
        if logged is not None and now - logged.at < INTERVAL_S:
            logged.kept_back += 1
            return
        self._logged[subject] = _Logged(now)
        self._logged.move_to_end(subject)
        if len(self._logged) > SUBJECTS_MAX:
            self._logged.popitem(last=False)
        if logged is not None and logged.kept_back:
            again = f" ({logged.kept_back + 1} times in {now - logged.at:.0f} s)"
            self._logger.log(self._level, self._message + "%s", *args, again)
        else:
            self._logger.log(self._level, self._message, *args)

    def forget(self) -> None:
        """Log the next line about any subject, however recently there was one."""
        self._logged.clear()
