"""Where backups lie: a directory, or an object store that speaks S3, with the same layout."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from chronik.cli.backup_files import BackupDirectory, BackupFolder, too_large
from chronik.cli.client import CommandFailed
from chronik.cli.object_thread import ObjectThread

if TYPE_CHECKING:
    from chronik.config import Settings
    from chronik.objects.door import ObjectDoor

RANGE_BYTES: Final = 8 * 1024 * 1024
"""One call of the store moves this much; its time-out counts for one call."""


@contextmanager
def open_place(where: str, config: Path | None = None) -> Iterator[BackupFolder]:
    """What `where` names: a directory, `file:///folder` or `s3://bucket/prefix`."""
    if "://" not in where:
        yield BackupDirectory(Path(where))
        return
    parts = urlsplit(where)
    if parts.scheme == "file":
        folder = Path(unquote(parts.path))
        if parts.netloc or not folder.is_absolute():
            raise CommandFailed(f"{where} names no folder: write file:///path/of/the/folder")
        yield BackupDirectory(folder)
        return
    if parts.scheme != "s3" or not parts.netloc:
        raise CommandFailed(
            f"{where} is no place for backups: name a directory, file:///folder or s3://bucket/prefix"
        )
    from chronik.cli.settings import load

    objects = BackupObjects(_door(where, load({}, config).settings))
    try:
        yield objects
    finally:
        objects.close()


def _door(where: str, settings: Settings) -> ObjectDoor:
    from dataclasses import replace

    from chronik.assembly import open_object_store

    if settings.object_store is not None and _below(where) == _below(settings.object_store):
        raise CommandFailed(
            f"{where} is where the nodes keep their segments (object_store): use another prefix"
        )
    door = open_object_store(replace(settings, object_store=where), random.Random())
    assert door is not None
    return door


def _below(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.netloc, parts.path.strip("/")


class BackupObjects:
    """Objects never change, so what a folder held at the first look is remembered, sizes too."""

    def __init__(self, door: ObjectDoor) -> None:
        self._door = door
        self._sizes: dict[str, dict[str, int]] = {}
        self._thread = ObjectThread(door)

    def close(self) -> None:
        self._thread.close()

    def put(self, path: str, data: bytes | bytearray) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(data), RANGE_BYTES):
                yield bytes(data[start : start + RANGE_BYTES])

        self._thread.run(self._door.put(path, chunks))
        folder, _, name = path.rpartition("/")
        if folder in self._sizes:
            self._sizes[folder][name] = len(data)

    def get(self, path: str, size_max: int) -> bytes | None:
        folder, _, name = path.rpartition("/")
        size = self._listed(folder).get(name)
        if size is None:
            return None
        if size > size_max:
            raise too_large(path, size_max)
        return self._thread.run(self._read(path, size))

    async def _read(self, path: str, size: int) -> bytes:
        starts = range(0, size, RANGE_BYTES)
        return b"".join(
            [await self._door.get(path, start, min(RANGE_BYTES, size - start)) for start in starts]
        )

    def names(self, path: str) -> list[str]:
        return sorted(self._listed(path))

    def _listed(self, folder: str) -> dict[str, int]:
        """Size of each object directly in a folder; names that are none of ours are left out."""
        from chronik.objects.store import LIST_MAX

        if folder not in self._sizes:
            found = self._thread.run(self._door.listed(folder))
            if len(found) >= LIST_MAX:
                raise CommandFailed(
                    f"{self._door.address} has {LIST_MAX} objects or more in {folder}: begin a new backup in "
                    "another prefix"
                )
            inside = ((one.name.removeprefix(f"{folder}/"), one.size_bytes) for one in found)
            self._sizes[folder] = {name: size for name, size in inside if "/" not in name}
        return self._sizes[folder]
