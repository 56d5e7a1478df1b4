"""What an object store must be able to do, and how it fails."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

from chronik.model import ChronikError

__all__ = [
    "LIST_MAX",
    "ObjectMissing",
    "ObjectStore",
    "ObjectStoreBusy",
    "ObjectStoreError",
    "StoredObject",
    "check_object_name",
]

LIST_MAX: Final = 100_000
"""Objects that one listing returns at most; the caller asks again once it has removed some."""
NAME_LENGTH_MAX: Final = 900
"""S3 takes 1,024 bytes, the store's own prefix included."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


class ObjectStoreError(ChronikError):
    """The store did not do what it was asked. One sentence, without credentials."""


class ObjectStoreBusy(ObjectStoreError):
    """Too many wait for the store already."""


class ObjectMissing(ObjectStoreError):
    """There is no object of this name. Asking again does not help."""


class StoredObject(NamedTuple):
    name: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """Names are relative to the store's prefix. Errors are ObjectStoreError or OSError."""

    @property
    def address(self) -> str:
        """For people: without credentials."""

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        """Store an object. It is visible once this returns, and nothing of it is before that."""

    async def get(self, name: str, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on; fewer only where the object ends."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Names that do not exist are left out without an error."""

    async def listed(self, prefix: str) -> list[StoredObject]:
        """Objects below a folder, at most `LIST_MAX`."""
        ...

    async def folders(self, prefix: str) -> list[str]:
        """Names of the folders directly below a folder, at most `LIST_MAX`."""
        ...

    async def close(self) -> None: ...


def check_object_name(name: str) -> None:
    """Names are built here and come back from listings: neither may lead out of the store's folder."""
    if len(name) > NAME_LENGTH_MAX or _NAME.fullmatch(name) is None:
        raise ObjectStoreError(f"{name[:80]!r} is no name of an object")
