"""Pieces of remote objects in memory, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final

from chronik.metrics import TieringStats
from chronik.objects.door import ObjectDoor
from chronik.tiering.fetches import Fetches, ObjectPart

__all__ = ["CHUNK_BYTES", "ObjectCache"]

CHUNK_BYTES: Final = 4 * 1024 * 1024


class ObjectCache:
    """Least recently used pieces go first."""

    def __init__(self, door: ObjectDoor, fetches: Fetches, bytes_max: int, stats: TieringStats) -> None:
        self._door = door
        self._fetches = fetches
        self._bytes_max = bytes_max
        self._stats = stats
        self._parts: OrderedDict[ObjectPart, bytes] = OrderedDict()

    async def get(self, part: ObjectPart) -> bytes:
        data = self._parts.get(part)
        if data is not None:
            self._parts.move_to_end(part)
            self._stats.cache_hits += 1
            return data
        self._stats.cache_misses += 1
        return await self._fetches.get(part, partial(self._fetch, part), part.size)

    def prefetch(self, part: ObjectPart) -> None:
        """Fetch it for a reader that is likely to come."""
        if part not in self._parts:
            self._fetches.begin(part, partial(self._fetch, part), part.size)

    async def _fetch(self, part: ObjectPart) -> bytes:
        data = await self._door.get(part.path, part.start, part.size)
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
