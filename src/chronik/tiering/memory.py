"""Memory that reads of the object store may take while they are under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from chronik.metrics import TieringStats
from chronik.objects.store import ObjectStoreBusy

__all__ = ["ByteBudget", "Holding"]


class ByteBudget:
    """Hands out that many bytes at a time. What is larger gets its memory when nobody else has any."""

    def __init__(self, bytes_max: int, stats: TieringStats) -> None:
        self._bytes_max = bytes_max
        self._stats = stats
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_half_free(self) -> bool:
        return not self._waiting and self._used_bytes <= self._bytes_max // 2

    def take(self, size: int) -> bool:
        if self._used_bytes and self._used_bytes + size > self._bytes_max:
            return False
        self._used_bytes += size
        self._stats.read_memory_bytes += size
        return True

    def give_back(self, size: int) -> None:
        self._used_bytes -= size
        self._stats.read_memory_bytes -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            # Who was cancelled in this turn of the loop is here still.
            if not turn.done():
                if not self.take(size):
                    return
                turn.set_result(None)
            self._waiting.popleft()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Waits in turn, so that large ones get theirs, too. Who waits must hold nothing of the budget."""
        if self._waiting or not self.take(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self.give_back(size)
                elif (size, turn) in self._waiting:
                    self._waiting.remove((size, turn))
                    self._admit()
                raise
        try:
            yield
        finally:
            self.give_back(size)

    @contextmanager
    def holding(self) -> Iterator[Holding]:
        """For one reader, who does not wait: what it holds goes back when it is done."""
        holding = Holding(self)
        try:
            yield holding
        finally:
            holding.give_back()


class Holding:
    """What one reader has of a budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._bytes = 0

    def resize(self, size: int) -> None:
        """ObjectStoreBusy if others have so much that this does not fit; then it holds nothing."""
        self.give_back()
        if not self._budget.take(size):
            raise ObjectStoreBusy("too much is read from the object store at this time")
        self._bytes = size

    def give_back(self) -> None:
        size, self._bytes = self._bytes, 0
        if size:
            self._budget.give_back(size)
