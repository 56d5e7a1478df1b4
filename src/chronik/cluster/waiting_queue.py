"""Senders wait in turn until something bounded has room again (S04); none is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """Senders that wait for room, first come, first served. Each caller brings its own deadline."""

    __slots__ = ("_changed", "_turn", "waits")

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self.waits = 0
        """How often somebody had to wait."""

    @property
    def is_waited_for(self) -> bool:
        return self._turn.locked()

    def changed(self) -> None:
        """Room may have become free, or waiting may be pointless now: the first waiter checks again."""
        self._changed.set()

    async def enter(self, is_room: Callable[[], bool]) -> None:
        """Wait for room, in the order of arrival. The caller must use the room in the same turn of the loop,
        since the next waiter checks right after it."""
        if not self._turn.locked() and is_room():
            return
        self.waits += 1
        async with self._turn:
            while not is_room():
                self._changed.clear()
                await self._changed.wait()
