"""The segment files that a node has open: no more than its share of descriptors, however many there are.

A segment opens its file when it is first used. Opening one more than the limit closes one that was not
used since the last time round (the clock algorithm): a use costs no more than setting a flag, and only
opening a file takes the lock. A read or write under way keeps the handle that it has.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

__all__ = ["SEGMENTS_OPEN_MAX", "Handles"]

SEGMENTS_OPEN_MAX: Final = 256
CHANCES_MAX: Final = 64
"""Files passed over because they were used; after that many the next one is closed even so."""


class Holder(Protocol):
    was_used: bool

    def let_go(self) -> None:
        """Forget the open file; the next use opens it again."""


class Handles:
    def __init__(self, limit: int = SEGMENTS_OPEN_MAX) -> None:
        self.limit = limit
        self.evicted = 0
        self._open: dict[Holder, None] = {}
        """Longest open first, those passed over last."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, holder: Holder) -> None:
        with self._lock:
            self._open[holder] = None
            chances = CHANCES_MAX
            while len(self._open) > self.limit:
                first = next(iter(self._open))
                del self._open[first]
                if first.was_used and chances:
                    chances -= 1
                    first.was_used = False
                    self._open[first] = None
                    continue
                first.let_go()
                self.evicted += 1

    def forget(self, holder: Holder) -> None:
        """The holder closed its file, or keeps it open whatever happens."""
        with self._lock:
            self._open.pop(holder, None)

    def clear(self) -> None:
        with self._lock:
            self._open.clear()
