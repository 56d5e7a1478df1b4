"""An object store that all hosts of a simulated world share: slow, failing, and cut off at times.

What fails may have happened all the same, as with a real store: the answer was lost. What its caller gave up
may happen later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Final

from chronik.objects.store import ObjectMissing, ObjectStoreError, StoredObject

_NEVER_SECONDS: Final = 1e6
_CHUNK_SECONDS: Final = 0.002
_LATE_SECONDS_MAX: Final = 10.0
"""How long after its caller gave up a write may still happen."""


class SimObjects:
    """What stays when nodes go."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.objects: dict[str, bytes] = {}
        self.seconds = rng.choice((0.002, 0.02, 0.1))
        """A usual call takes about this long."""
        self.slowness = 1.0
        self.failing = 0.0
        """Share of calls that fail, half of them after they were carried out."""
        self.cut_off: set[str] = set()
        """Hosts that get no answer."""
        self.calls = 0


class SimObjectsView:
    """The store as one host sees it."""

    address = "sim://objects"

    def __init__(self, store: SimObjects, host: str) -> None:
        self._store = store
        self._host = host

    async def _turn(self) -> bool:
        """Whether the call fails after it was carried out."""
        store = self._store
        store.calls += 1
        await asyncio.sleep(store.seconds * store.slowness * (0.5 + store.rng.random()))
        if self._host in store.cut_off:
            await asyncio.sleep(_NEVER_SECONDS)
        if store.rng.random() < store.failing:
            if store.rng.random() < 0.5:
                raise ObjectStoreError("503 slow down")
            return True
        return False

    def _answer(self, is_lost: bool) -> None:
        if is_lost:
            raise ObjectStoreError("the connection broke before the answer")

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        parts = []
        async for chunk in chunks:
            parts.append(bytes(chunk))
            await asyncio.sleep(_CHUNK_SECONDS * self._store.slowness)
        data, store = b"".join(parts), self._store
        try:
            is_lost = await self._turn()
        except asyncio.CancelledError:
            if store.rng.random() < 0.5:
                delay = store.rng.random() * _LATE_SECONDS_MAX
                asyncio.get_running_loop().call_later(delay, store.objects.__setitem__, name, data)
            raise
        store.objects[name] = data
        self._answer(is_lost)

    async def get(self, name: str, start: int, size: int) -> bytes:
        self._answer(await self._turn())
        data = self._store.objects.get(name)
        if data is None:
            raise ObjectMissing(f"there is no object {name}")
        return data[start : start + size]

    async def delete(self, names: Sequence[str]) -> None:
        is_lost = await self._turn()
        for name in names:
            self._store.objects.pop(name, None)
        self._answer(is_lost)

    async def listed(self, prefix: str) -> list[StoredObject]:
        self._answer(await self._turn())
        return [
            StoredObject(name, len(data), 0)
            for name, data in sorted(self._store.objects.items())
            if name.startswith(prefix + "/")
        ]

    async def folders(self, prefix: str) -> list[str]:
        self._answer(await self._turn())
        below = (
            name.removeprefix(prefix + "/") for name in self._store.objects if name.startswith(prefix + "/")
        )
        return sorted({name.split("/", 1)[0] for name in below})

    async def close(self) -> None:
        pass
