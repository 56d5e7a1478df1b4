"""What is on its way from the object store: each thing once, however many wait for it, within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from chronik.model import ChronikError
from chronik.objects.store import ObjectStoreBusy
from chronik.tasks import Tasks
from chronik.tiering.memory import ByteBudget

__all__ = ["Fetches", "ObjectPart"]

T = TypeVar("T")

PENDING_MAX: Final = 256
"""Things that may be on their way, or wait for memory, at a time."""
PREFETCH_MAX: Final = 32
"""Nothing is fetched ahead while more are."""


class ObjectPart(NamedTuple):
    path: str
    start: int
    size: int


class Fetches:
    """A fetch goes on when whoever began it gave up: another reader may wait for it, or come for it."""

    def __init__(self, memory: ByteBudget) -> None:
        self._memory = memory
        self._under_way: dict[ObjectPart, asyncio.Task[Any]] = {}
        self._tasks = Tasks("remote reads")

    async def stop(self) -> None:
        await self._tasks.close()

    async def get(
        self, part: ObjectPart, fetch: Callable[[], Coroutine[Any, Any, T]], memory_bytes: int
    ) -> T:
        """What `fetch` makes of the part; it takes `memory_bytes` while it is under way."""
        outcome: T | Exception = await asyncio.shield(self._fetching(part, fetch, memory_bytes))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def begin(self, part: ObjectPart, fetch: Callable[[], Coroutine[Any, Any, T]], memory_bytes: int) -> None:
        """Fetch it for a reader that is likely to come; not at the cost of those who wait."""
        if len(self._under_way) < PREFETCH_MAX and self._memory.is_half_free:
            self._fetching(part, fetch, memory_bytes)

    def _fetching(
        self, part: ObjectPart, fetch: Callable[[], Coroutine[Any, Any, T]], memory_bytes: int
    ) -> asyncio.Task[T | Exception]:
        task = self._under_way.get(part)
        if task is None:
            if len(self._under_way) >= PENDING_MAX:
                raise ObjectStoreBusy("too many reads of the object store are under way")
            task = self._tasks.spawn(self._outcome(fetch, memory_bytes), f"reading {part.path}")
            self._under_way[part] = task
            task.add_done_callback(lambda _: self._under_way.pop(part, None))
        return task

    async def _outcome(self, fetch: Callable[[], Coroutine[Any, Any, T]], memory_bytes: int) -> T | Exception:
        """An error is a value: nobody may wait for it any more."""
        try:
            async with self._memory.taken(memory_bytes):
                return await fetch()
        except (ChronikError, OSError) as error:
            return error
