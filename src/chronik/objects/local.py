"""An object store in a directory: of this machine, or one that all nodes mount."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from chronik.objects.store import LIST_MAX, ObjectMissing, StoredObject

__all__ = ["LocalObjects"]

T = TypeVar("T")

_THREADS: Final = 4
_UNFINISHED: Final = ".part-"
"""Begins the name of a file that is being written. No object's name begins with a dot."""
_NO_FILE: Final = -1
_GIVEN_UP_SECONDS: Final = 24 * 3600.0
"""An unfinished file that nobody wrote to for this long is removed by the next listing."""


class LocalObjects:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="objects")

    @property
    def address(self) -> str:
        return self._root.as_uri() if self._root.is_absolute() else str(self._root)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        file = _Unfinished(self._root / name)
        try:
            await self._run(file.create)
            async for chunk in chunks:
                await self._run(partial(file.write, chunk))
            await self._run(file.finish)
        except BaseException:
            self._threads.submit(file.give_up)
            raise

    async def get(self, name: str, start: int, size: int) -> bytes:
        return await self._run(lambda: _read(self._root / name, start, size))

    async def delete(self, names: Sequence[str]) -> None:
        await self._run(lambda: _delete(self._root, names))

    async def listed(self, prefix: str) -> list[StoredObject]:
        return await self._run(lambda: list(_walk(self._root, self._root / prefix)))

    async def folders(self, prefix: str) -> list[str]:
        return await self._run(lambda: _folders(self._root / prefix))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Unfinished:
    """A file that is being written. Blocking.

    A caller that gives up does not end what a thread is doing for it. So the lock keeps the file open until
    that thread is done: once it is closed, its number may be that of any other file of the process.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path = target.with_name(_UNFINISHED + uuid.uuid4().hex)
        self._lock = threading.Lock()
        self._file = _NO_FILE
        self._is_over = False
        """Finished or given up: writes that still come are ignored."""

    def create(self) -> None:
        with self._lock:
            if not self._is_over:
                _make_folder(self._path.parent)
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, chunk: bytes) -> None:
        with self._lock:
            view = memoryview(chunk)
            while view and not self._is_over:
                view = view[os.write(self._file, view) :]

    def finish(self) -> None:
        with self._lock:
            if not self._is_over:
                os.fsync(self._file)
                self._close()
                self._path.rename(self._target)
                _sync_folder(self._target.parent)

    def give_up(self) -> None:
        with self._lock:
            if self._file != _NO_FILE:
                self._close()
            self._is_over = True
            self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        file, self._file, self._is_over = self._file, _NO_FILE, True
        os.close(file)


def _make_folder(folder: Path) -> None:
    """Each folder that is new is on the disk before anything is in it."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        _sync_folder(one.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _delete(root: Path, names: Sequence[str]) -> None:
    for name in names:
        path = root / name
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == root:
                break
            try:
                folder.rmdir()
            except OSError:
                break  # there is more in it


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return os.pread(file.fileno(), size, start)
    except FileNotFoundError:
        raise ObjectMissing(f"there is no object {path.name}") from None


def _walk(root: Path, folder: Path) -> Iterator[StoredObject]:
    count = 0
    for path, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            found = Path(path, name)
            try:
                facts = found.stat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            if name.startswith(_UNFINISHED):
                if time.time() - facts.st_mtime > _GIVEN_UP_SECONDS:
                    found.unlink(missing_ok=True)  # its writer was killed
                continue
            yield StoredObject(
                found.relative_to(root).as_posix(), facts.st_size, facts.st_mtime_ns // 1_000_000
            )
            count += 1
            if count == LIST_MAX:
                return


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())[:LIST_MAX]
    except FileNotFoundError:
        return []
