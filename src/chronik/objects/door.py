"""The door: every call of an object store goes through here, and none blocks or lasts for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeAlias, TypeVar

from chronik.metrics import ObjectStats, clock
from chronik.model import ChronikError
from chronik.objects.store import (
    ObjectMissing,
    ObjectStore,
    ObjectStoreBusy,
    ObjectStoreError,
    StoredObject,
    check_object_name,
)

__all__ = ["Chunks", "ObjectDoor"]

T = TypeVar("T")

Chunks: TypeAlias = Callable[[], AsyncIterator[bytes]]
"""Produces the object's bytes from the start again for each attempt."""

ATTEMPTS_MAX: Final = 4
BACKOFF_SECONDS: Final = 0.2
"""The first pause before a retry; each further one is twice as long. A random part of up to half is taken
off, so that nodes that failed together do not come back together."""
DELETES_A_CALL: Final = 1000
"""Keys in one call; S3 takes no more."""
REASON_LENGTH_MAX: Final = 200
WAITING_MAX: Final = 256
"""Calls that may wait for others to end, reads and writes apart. While a store is away each call lasts for
minutes, so a caller behind that many others would give up before its turn."""


class _SourceFailed(Exception):
    """The object's bytes could not be produced; the store is not to blame."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _CallLimit:
    """Limits calls of one kind: at most this many at a time, and `WAITING_MAX` that wait."""

    def __init__(self, calls_max: int) -> None:
        self._places = asyncio.Semaphore(calls_max)
        self._waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """ObjectStoreBusy if too many wait already."""
        if self._places.locked() and self._waiting >= WAITING_MAX:
            raise ObjectStoreBusy("too many calls wait for the object store")
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()


class ObjectDoor:
    def __init__(
        self,
        store: ObjectStore,
        *,
        rng: random.Random,
        timeout_s: float = 30.0,
        reads_max: int = 16,
        writes_max: int = 2,
    ) -> None:
        """`timeout_s` limits each call; an upload may take longer as long as its bytes are taken."""
        self._store = store
        self._rng = rng
        self._timeout_s = timeout_s
        self._reads = _CallLimit(reads_max)
        self._writes = _CallLimit(writes_max)
        self.stats = ObjectStats()

    @property
    def address(self) -> str:
        return self._store.address

    async def put(self, name: str, chunks: Chunks) -> None:
        """Store an object whole; OSError and ChronikError of its source come through as they are."""
        check_object_name(name)
        async with self._writes.place():
            try:
                await self._attempts("put", name, lambda limit: self._put(name, chunks, limit))
            except _SourceFailed as failed:
                raise failed.error from None

    async def _put(self, name: str, chunks: Chunks, limit: asyncio.Timeout) -> None:
        failed: list[Exception] = []
        loop = asyncio.get_running_loop()

        async def watched() -> AsyncIterator[bytes]:
            try:
                async for chunk in chunks():
                    limit.reschedule(loop.time() + self._timeout_s)
                    self.stats.written_bytes += len(chunk)
                    yield chunk
            except (OSError, ChronikError) as error:
                failed.append(error)
                raise

        try:
            await self._store.put(name, watched())
        except Exception:
            if failed:
                raise _SourceFailed(failed[0]) from None
            raise

    async def get(self, name: str, start: int, size: int) -> bytes:
        """Exactly these bytes."""
        check_object_name(name)
        async with self._reads.place():
            data = await self._attempts("get", name, lambda _: self._get(name, start, size))
        self.stats.read_bytes += len(data)
        return data

    async def _get(self, name: str, start: int, size: int) -> bytes:
        data = await self._store.get(name, start, size)
        if len(data) != size:
            raise ObjectStoreError(f"it gave {len(data)} bytes instead of {size}")
        return data

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_object_name(name)
        for first in range(0, len(names), DELETES_A_CALL):
            part = names[first : first + DELETES_A_CALL]
            async with self._writes.place():
                await self._attempts("delete", part[0], partial(self._delete, part))
            self.stats.deleted += len(part)

    async def _delete(self, names: Sequence[str], _: asyncio.Timeout) -> None:
        await self._store.delete(names)

    async def listed(self, prefix: str) -> list[StoredObject]:
        check_object_name(prefix)
        async with self._reads.place():
            return await self._attempts("list", prefix, lambda _: self._store.listed(prefix))

    async def folders(self, prefix: str) -> list[str]:
        check_object_name(prefix)
        async with self._reads.place():
            return await self._attempts("list", prefix, lambda _: self._store.folders(prefix))

    async def close(self) -> None:
        await self._store.close()

    async def _attempts(self, what: str, name: str, call: Callable[[asyncio.Timeout], Awaitable[T]]) -> T:
        """Try a few times; what fails to the end is one sentence."""
        began = clock()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    result = await call(limit)
                self.stats.seconds[what].observe(clock() - began)
                return result
            except ObjectMissing:
                raise
            except (ObjectStoreError, OSError) as error:  # TimeoutError is an OSError
                self.stats.errors[what] += 1
                if attempt == ATTEMPTS_MAX:
                    raise ObjectStoreError(
                        f"cannot {what} {name} at {self.address}: {self._reason(error)}"
                    ) from None
            pause = BACKOFF_SECONDS * 2 ** (attempt - 1)
            await asyncio.sleep(pause * (1 - self._rng.random() / 2))
        raise AssertionError("the last attempt returns or raises")

    def _reason(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout_s:g} s"
        return " ".join(str(error).split())[:REASON_LENGTH_MAX] or type(error).__name__
