"""Pieces of remote objects in memory: bounded, each fetched once however many readers wait for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

from chronik.metrics import TieringStats
from chronik.model import ChronikError, Unavailable
from chronik.objects.door import ObjectDoor
from chronik.tasks import Tasks

__all__ = ["CHUNK_BYTES", "ObjectCache", "ObjectPart"]

CHUNK_BYTES: Final = 4 * 1024 * 1024
PENDING_MAX: Final = 64
"""Pieces that may be on their way at a time; Kafka's remote.log.reader.max.pending.tasks bounds the same."""


class ObjectPart(NamedTuple):
    path: str
    start: int
    size: int


class ObjectCache:
    """Least recently used pieces go first. A fetch under way goes on when its reader gave up."""

    def __init__(self, door: ObjectDoor, bytes_max: int, stats: TieringStats) -> None:
        self._door = door
        self._bytes_max = bytes_max
        self._stats = stats
        self._parts: OrderedDict[ObjectPart, bytes] = OrderedDict()
        self._under_way: dict[ObjectPart, asyncio.Task[bytes | Exception]] = {}
        self._tasks = Tasks("remote reads")

    async def stop(self) -> None:
        await self._tasks.close()

    async def get(self, part: ObjectPart) -> bytes:
        data = self._parts.get(part)
        if data is not None:
            self._parts.move_to_end(part)
            self._stats.cache_hits += 1
            return data
        self._stats.cache_misses += 1
        outcome = await asyncio.shield(self._fetching(part))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def prefetch(self, part: ObjectPart) -> None:
        """Fetch it for a reader that is likely to come; not at the cost of those who wait."""
        if part not in self._parts and len(self._under_way) < PENDING_MAX // 2:
            self._fetching(part)

    def _fetching(self, part: ObjectPart) -> asyncio.Task[bytes | Exception]:
        task = self._under_way.get(part)
        if task is None:
            if len(self._under_way) >= PENDING_MAX:
                raise Unavailable("Too many reads of the object store are under way.")
            task = self._tasks.spawn(self._fetch(part), f"reading {part.path}")
            self._under_way[part] = task
            task.add_done_callback(lambda _: self._under_way.pop(part, None))
        return task

    async def _fetch(self, part: ObjectPart) -> bytes | Exception:
        """An error is a value: nobody may wait for it any more."""
        try:
            data = await self._door.get(part.path, part.start, part.size)
        except (ChronikError, OSError) as error:
            return error
        if len(data) <= self._bytes_max:
            self._parts[part] = data
            self._stats.cache_bytes += len(data)
            while self._stats.cache_bytes > self._bytes_max:
                self.drop(next(iter(self._parts)))
        return data

    def drop(self, part: ObjectPart) -> None:
        """Forget a piece, because it is damaged or others need the room."""
        data = self._parts.pop(part, None)
        if data is not None:
            self._stats.cache_bytes -= len(data)
