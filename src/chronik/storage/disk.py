"""All file access of a node goes through a `Disk`. An in-memory disk can take the place of the real one.

Plain methods block and are meant for start-up and for work handed to an I/O thread; `submit` runs such work
beside the event loop and calls back on the loop. An I/O thread runs its jobs one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from chronik.metrics import clock
from chronik.private_files import FILE_MODE, make_private
from chronik.records.batch import Buffer
from chronik.storage.handles import SEGMENTS_OPEN_MAX, Handles

T = TypeVar("T")
Done: TypeAlias = Callable[[T | None, BaseException | None], None]

_IOV_MAX: Final = 1024
_CALL_BYTES_MAX: Final = 1024 * 1024
"""Largest write call; longer writes are split. The kernel allocates the new pages of a file in pieces as long
as the call. Pieces of megabytes may be memory that a virtual machine has returned to its host, and writing
there takes up to eight times as long."""


class IoThread(enum.Enum):
    WAL = "wal"
    """Commit rounds only: nothing may delay an acknowledgement."""
    WAL_SYNC = "wal-sync"
    """Syncs of relaxed commit rounds, beside the rounds that follow."""
    BACKGROUND = "background"
    """Segment writes, checkpoints, deletion, compaction."""
    READ = "read"
    """Reads that are not in the page cache."""
    RECORDS = "records"
    """Looks into batches of clients, which may be compressed from very many records. No other work waits for
    it, and it holds one batch at a time."""


class File(Protocol):
    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int: ...
    def read_at(self, position: int, size: int) -> bytes: ...
    def read_cached(self, position: int, size: int) -> bytes | None:
        """Like `read_at`, but None where that would wait for the device."""

    def sync(self) -> None: ...
    def truncate(self, size: int) -> None: ...
    def preallocate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class Disk(Protocol):
    @property
    def handles(self) -> Handles:
        """The segment files that are open."""
        ...

    def open(self, path: Path, *, create: bool = False) -> File: ...
    def list(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; none if it does not exist."""

    def exists(self, path: Path) -> bool: ...
    def size(self, path: Path) -> int: ...
    def modified_ms(self, path: Path) -> int:
        """When the file was last written to, by the wall clock; -1 if it does not exist."""
        ...

    def make_directory(self, directory: Path) -> None: ...
    def sync_directory(self, directory: Path) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_tree(self, directory: Path) -> None: ...
    def usage(self, directory: Path) -> tuple[int, int]:
        """Bytes of the directory's file system: all, and still usable."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether a small write may be done in the caller's turn instead of in an I/O thread."""
        ...

    def clock(self) -> float:
        """Seconds, to measure how long work on this disk takes."""
        ...

    def submit(self, io_thread: IoThread, work: Callable[[], T], done: Done[T]) -> None: ...
    async def run(self, io_thread: IoThread, work: Callable[[], T]) -> T: ...
    def close(self) -> None: ...


async def in_io_thread(disk: Disk, io_thread: IoThread, work: Callable[[], T]) -> T:
    """What `Disk.run` does on every disk: submit the work and wait for it."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    disk.submit(io_thread, work, partial(_settle, future))
    try:
        return await future
    finally:
        del future  # breaks a reference cycle: future, exception, this frame


def _settle(future: asyncio.Future[T], result: T | None, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # no failure: the work returned a T


def write_atomically(disk: Disk, path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves either the old or the new one."""
    scratch = path.with_name(path.name + ".new")
    file = disk.open(scratch, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [data])
        file.sync()
    finally:
        file.close()
    disk.rename(scratch, path)
    disk.sync_directory(path.parent)


def read_whole(disk: Disk, path: Path) -> bytes | None:
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


class RealFile:
    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers; returns the number of bytes."""
        total = sum(map(len, buffers))
        if total <= _CALL_BYTES_MAX and len(buffers) <= _IOV_MAX:
            self._write(position, buffers, total)
            return total
        for group, size in _calls(buffers):
            self._write(position, group, size)
            position += size
        return total

    def _write(self, position: int, buffers: Sequence[Buffer], size: int) -> None:
        written = os.pwritev(self._fd, buffers, position)
        if written < size:
            self._write_rest(position + written, b"".join(buffers)[written:])

    def _write_rest(self, position: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, position)
            if written == 0:
                raise OSError(errno.ENOSPC, "the device takes no more bytes", str(self._path))
            view = view[written:]
            position += written

    def read_at(self, position: int, size: int) -> bytes:
        return os.pread(self._fd, size, position)

    def read_cached(self, position: int, size: int) -> bytes | None:
        target = bytearray(size)
        try:
            count = os.preadv(self._fd, [target], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                return None
            raise
        if count == size:
            return target  # type: ignore[return-value]  # a bytearray serves wherever bytes are read
        return None

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def preallocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def _calls(buffers: Sequence[Buffer]) -> Iterator[tuple[Sequence[Buffer], int]]:
    """What to give to the kernel in one call each, with the number of bytes."""
    group: list[Buffer] = []
    size = 0
    for buffer in buffers:
        for start in range(0, len(buffer), _CALL_BYTES_MAX):
            piece = memoryview(buffer)[start : start + _CALL_BYTES_MAX]
            if group and (size + len(piece) > _CALL_BYTES_MAX or len(group) == _IOV_MAX):
                yield group, size
                group, size = [], 0
            group.append(piece)
            size += len(piece)
    if group:
        yield group, size


class _Worker(threading.Thread):
    def __init__(self, io_thread: IoThread) -> None:
        super().__init__(name=f"chronik-{io_thread.value}", daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()
            del job  # or its buffers would stay in memory until the next job comes


class RealDisk:
    """Files of the operating system, a thread for each `IoThread`. Belongs to one event loop."""

    is_local = True
    clock = staticmethod(clock)

    def __init__(self, loop: asyncio.AbstractEventLoop, segments_open_max: int = SEGMENTS_OPEN_MAX) -> None:
        self._loop = loop
        self.handles = Handles(segments_open_max)
        self._io_threads: dict[IoThread, _Worker] = {}
        self._is_closed = False

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, FILE_MODE))

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        try:
            return path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return -1

    def make_directory(self, directory: Path) -> None:
        make_private(directory)

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_tree(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)

    def usage(self, directory: Path) -> tuple[int, int]:
        status = os.statvfs(directory)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def submit(self, io_thread: IoThread, work: Callable[[], T], done: Done[T]) -> None:
        if self._is_closed:
            return  # the process is as good as gone: nothing may touch its files any more
        thread = self._io_threads.get(io_thread)
        if thread is None:
            thread = self._io_threads[io_thread] = _Worker(io_thread)
            thread.start()
        thread.jobs.put(partial(self._perform, work, done))

    def _perform(self, work: Callable[[], T], done: Done[T]) -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(done, result, failure)
        # The exception refers to this frame, so the frame must not refer to the exception. Such a cycle would
        # keep the files of all frames in the traceback open, deleted ones too, until the next collection.
        del done, failure

    async def run(self, io_thread: IoThread, work: Callable[[], T]) -> T:
        return await in_io_thread(self, io_thread, work)

    def close(self) -> None:
        self._is_closed = True
        for thread in self._io_threads.values():
            thread.jobs.put(None)
        for thread in self._io_threads.values():
            thread.join(timeout=5)
        self._io_threads.clear()
