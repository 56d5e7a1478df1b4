"""A host's disk behind the storage door, and one process's view of it.

The disk outlives the processes that use it. A view belongs to one process and dies with it: its I/O threads
stop, its handles are worthless. Faults are switches on the disk; a crash can be set to strike inside the nth
change, which is how the moments between two steps of a background job are reached.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from chronik.records.batch import Buffer
from chronik.sim.files import Directory, Inode
from chronik.sim.loop import EPOCH_MS, SimLoop
from chronik.sim.process import Crashed, Process
from chronik.storage.disk import Done, IoThread, in_io_thread
from chronik.storage.handles import Handles

T = TypeVar("T")

_WRITE_SECONDS: Final = 2e-5
_SYNC_SECONDS: Final = 2e-4
_LONG_SYNC_PROBABILITY: Final = 0.01
_LONG_SYNC_SECONDS: Final = 0.05
_CACHE_MISS_PROBABILITY: Final = 0.1
_HANDLES_MAX: Final = 4
"""Few, so that segments are closed and opened again all the time."""


class SimDisk:
    """A host's disk, which outlives the processes that use it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.root = Directory()
        self.free_bytes: int | None = None
        """Bytes that are left; None: unlimited."""
        self.bytes_per_second: float | None = None
        """Write throughput; None: a write takes the same time however large it is."""
        self._slowness = 1.0
        self.view: DiskView | None = None
        """The view of the process that uses the disk, or used it last."""
        self.sync_failures = 0
        """Number of syncs that will fail next."""
        self.is_local = rng.random() < 0.5
        """Whether small rounds are written on the event loop, as on a quick disk, and not in the WAL's
        thread."""

    @property
    def slowness(self) -> float:
        """Factor by which syncs are slower."""
        return self._slowness

    @slowness.setter
    def slowness(self, factor: float) -> None:
        """Calls under way are hastened too when the disk gets faster; otherwise a fault would outlast its
        end."""
        if factor < self._slowness and self.view is not None:
            self.view.hasten(self._slowness / factor)
        self._slowness = factor

    def lose_power(self, now: float = inf) -> list[str]:
        lost: list[str] = []
        self.root.lose_power(self.rng, PurePath("/"), lost, now)
        return lost

    def finish(self, now: float) -> None:
        """A process was killed: complete the calls that it is in, as a kernel does.

        Work in an I/O thread is done at once and takes its time afterwards. Later work sees all of
        it, so none of it may be less than it was: a rename without the sync that it came after.
        """
        self.root.finish(now)

    def files(self) -> list[tuple[PurePath, Inode]]:
        return list(self.root.walk(PurePath("/")))

    def directory(self, path: PurePath) -> Directory | None:
        at: Directory = self.root
        for name in path.parts[1:]:
            entry = at.entries.get(name)
            if not isinstance(entry, Directory):
                return None
            at = entry
        return at

    def take_room(self, size: int) -> int:
        """Allocate; returns how many bytes there was room for."""
        if self.free_bytes is None:
            return size
        taken = min(size, self.free_bytes)
        self.free_bytes -= taken
        return taken

    def give_room(self, size: int) -> None:
        if self.free_bytes is not None:
            self.free_bytes += size


class _Job:
    __slots__ = ("done", "failure", "finishes_at", "result", "work")

    def __init__(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.work = work
        self.done = done
        self.finishes_at: float | None = None
        """Known once it has begun."""
        self.result: Any = None
        self.failure: BaseException | None = None


class SimFile:
    def __init__(self, view: DiskView, path: PurePath, inode: Inode) -> None:
        self._view = view
        self._path = path
        self._inode = inode
        self._is_open = True
        self._number = view.note_open(path)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        self._view.change("write", self._path, lambda: self._tear(position, data))
        self._view.spend_on_write(len(data))
        growth = max(0, position + len(data) - self._inode.size)
        room = self._view.disk.take_room(growth)
        if room < growth:
            self._inode.write(position, data[: len(data) - (growth - room)], self._view.moment())
            raise OSError(errno.ENOSPC, "no space left on device", str(self._path))
        self._inode.write(position, data, self._view.moment())
        return len(data)

    def _tear(self, position: int, data: bytes) -> None:
        """The process dies inside the call: some of it was done."""
        count = self._view.disk.rng.randint(0, len(data))
        if count:
            self._inode.write(position, data[:count], self._view.moment())

    def read_at(self, position: int, size: int) -> bytes:
        self._check()
        return self._inode.read(position, size)

    def read_cached(self, position: int, size: int) -> bytes | None:
        self._check()
        if self._view.disk.rng.random() < _CACHE_MISS_PROBABILITY:
            return None
        found = self._inode.read(position, size)
        return found if len(found) == size else None

    def sync(self) -> None:
        self._view.on_sync(self._path, self._inode)
        self._view.change("sync", self._path)
        self._view.spend_on_sync()
        disk = self._view.disk
        if disk.sync_failures and self._inode.dirty_count:
            disk.sync_failures -= 1
            self._inode.fail_sync(disk.rng, self._view.now(), self._view.moment())
            raise OSError(errno.EIO, "input/output error", str(self._path))
        self._inode.sync(self._view.now(), self._view.moment())

    def truncate(self, size: int) -> None:
        self._view.change("truncate", self._path)
        self._view.disk.give_room(max(0, self._inode.size - size))
        self._inode.resize(size, self._view.moment())

    def preallocate(self, size: int) -> None:
        self._view.change("preallocate", self._path)
        growth = max(0, size - self._inode.size)
        if growth == 0:
            return
        room = self._view.disk.take_room(growth)
        if room < growth:
            self._view.disk.give_room(room)
            raise OSError(errno.ENOSPC, "no space left on device", str(self._path))
        self._inode.resize(size, self._view.moment())

    def size(self) -> int:
        self._check()
        return self._inode.size

    def close(self) -> None:
        self._is_open = False
        self._view.open_files.pop(self._number, None)

    def __del__(self) -> None:
        # As with a real handle: one that nobody refers to any more is closed.
        self.close()

    def _check(self) -> None:
        self._view.check()
        if not self._is_open:
            raise OSError(errno.EBADF, "file is closed", str(self._path))


class DiskView:
    """The `chronik.storage.disk.Disk` of one process."""

    def __init__(
        self, disk: SimDisk, process: Process, loop: SimLoop, on_crash: Callable[[str], None]
    ) -> None:
        self.disk = disk
        disk.view = self
        self.process = process
        self._loop = loop
        self._on_crash = on_crash
        self._io_threads: dict[IoThread, deque[_Job]] = {}
        self._spent = 0.0
        self._in_io_thread = False
        self.open_files: dict[int, PurePath] = {}
        """Handles by number: not the handles themselves, for one that nobody refers to is closed."""
        self._open_count = 0
        self.crash_in: int | None = None
        """The process dies inside the change that makes this zero."""
        self.crash_in_round_of: int | None = None
        """The process dies inside the sync of the first WAL round of at least this many bytes."""
        self.changes = 0
        self.is_local = disk.is_local
        self.handles = Handles(_HANDLES_MAX)

    def let_go(self) -> None:
        """The run is over: drop all references.

        A segment knows its disk and is known by batches in memory, which the garbage collector does not look
        into (`TailBatch`). So it takes a segment for one in use, and with it all that its disk knows.
        """
        self.process = Process("", "")
        self.process.alive = False
        del self._loop, self._on_crash
        self._io_threads.clear()
        self.handles.clear()

    def note_open(self, path: PurePath) -> int:
        self._open_count += 1
        self.open_files[self._open_count] = path
        return self._open_count

    # --- faults ------------------------------------------------------------------------------------

    def check(self) -> None:
        if not self.process.alive:
            raise Crashed

    def change(self, what: str, path: PurePath, tear: Callable[[], None] = lambda: None) -> None:
        """Every call that changes something comes through here first."""
        self.check()
        self.changes += 1
        trace = self._loop.trace
        if trace.is_kept:
            trace.tell(self.process.name, f"disk {what} {path}")
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                self.crash_in = None
                if self.disk.rng.random() < 0.5:
                    tear()
                self._on_crash(f"inside {what} of {path}")
                raise Crashed

    def on_sync(self, path: PurePath, inode: Inode) -> None:
        size_min = self.crash_in_round_of
        if size_min is not None and path.parent.name == "wal" and inode.dirty_bytes >= size_min:
            self.crash_in_round_of = None
            self.crash_in = 1

    def clock(self) -> float:
        return self._loop.now + self._spent

    def spend(self, seconds: float) -> None:
        self._spent += seconds

    def spend_on_write(self, size: int) -> None:
        rate = self.disk.bytes_per_second
        self._spent += _WRITE_SECONDS if rate is None else size / rate

    def spend_on_sync(self) -> None:
        rng = self.disk.rng
        seconds = _SYNC_SECONDS * (0.5 + rng.random())
        if rng.random() < _LONG_SYNC_PROBABILITY:
            seconds += _LONG_SYNC_SECONDS * rng.random()
        self._spent += seconds * self.disk.slowness

    def now(self) -> float:
        return self._loop.now

    def moment(self) -> float:
        """When what is done now happens: work in an I/O thread takes time."""
        return self._loop.now + self._spent if self._in_io_thread else self._loop.now

    # --- files -------------------------------------------------------------------------------------

    def _find(self, path: Path) -> tuple[Directory, Inode | Directory | None]:
        self.check()
        parent = self.disk.directory(path.parent)
        if parent is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return parent, parent.entries.get(path.name)

    def open(self, path: Path, *, create: bool = False) -> SimFile:
        parent, entry = self._find(path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        if entry is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self.change("create", path)
            entry = Inode()
            parent.link(path.name, entry, self.moment())
        return SimFile(self, path, entry)

    def list(self, directory: Path) -> list[str]:
        self.check()
        found = self.disk.directory(directory)
        return sorted(found.entries) if found is not None else []

    def exists(self, path: Path) -> bool:
        self.check()
        parent = self.disk.directory(path.parent)
        return parent is not None and (path.name in parent.entries or not path.name)

    def size(self, path: Path) -> int:
        _, entry = self._find(path)
        if not isinstance(entry, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return entry.size

    def modified_ms(self, path: Path) -> int:
        _, entry = self._find(path)
        return EPOCH_MS + int(entry.modified_at * 1000) if isinstance(entry, Inode) else -1

    def make_directory(self, directory: Path) -> None:
        self.check()
        at = self.disk.root
        for place, name in enumerate(directory.parts[1:], 2):
            entry = at.entries.get(name)
            if entry is None:
                self.change("mkdir", PurePath(*directory.parts[:place]))
                entry = Directory()
                at.link(name, entry, self.moment())
            elif not isinstance(entry, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(directory))
            at = entry

    def sync_directory(self, directory: Path) -> None:
        self.change("sync names of", directory)
        found = self.disk.directory(directory)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(directory))
        self.spend_on_sync()
        found.sync(self.now(), self.moment())

    def rename(self, source: Path, target: Path) -> None:
        if source.parent != target.parent:
            raise NotImplementedError("the simulated disk renames within a directory only")
        parent, entry = self._find(source)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        self.change(f"rename {source.name} to", target)
        parent.rename(source.name, target.name, self.moment())

    def remove(self, path: Path) -> None:
        self.check()
        parent = self.disk.directory(path.parent)
        entry = parent.entries.get(path.name) if parent is not None else None
        if parent is None or not isinstance(entry, Inode):
            return
        self.change("remove", path)
        self.disk.give_room(entry.size)
        parent.unlink(path.name, self.moment())

    def remove_tree(self, directory: Path) -> None:
        self.check()
        found = self.disk.directory(directory)
        parent = self.disk.directory(directory.parent)
        if found is None or parent is None:
            return
        for name, entry in sorted(found.entries.items()):
            if isinstance(entry, Directory):
                self.remove_tree(directory / name)
            else:
                self.remove(directory / name)
        self.change("rmdir", directory)
        parent.unlink(directory.name, self.moment())

    def free_bytes(self, directory: Path) -> int:
        return 1 << 40 if self.disk.free_bytes is None else self.disk.free_bytes

    def usage(self, directory: Path) -> tuple[int, int]:
        if self.disk.free_bytes is None:
            return 1 << 41, 1 << 40
        return self.disk.free_bytes + self.disk.root.size(), self.disk.free_bytes

    # --- I/O threads -------------------------------------------------------------------------------

    def submit(self, io_thread: IoThread, work: Callable[[], T], done: Done[T]) -> None:
        if not self.process.alive:
            return
        jobs = self._io_threads.setdefault(io_thread, deque())
        jobs.append(_Job(work, done))
        if len(jobs) == 1:
            self._loop.at(self._loop.now + 1e-6, self.process, self._start, io_thread)

    def _start(self, io_thread: IoThread) -> None:
        """Run the next job of an I/O thread as callbacks of the process, so that it stops when the process is
        paused or dead."""
        job = self._io_threads[io_thread][0]
        self._spent = 0.0
        self._in_io_thread = True
        try:
            job.result = job.work()
        except Crashed:
            return
        except BaseException as error:
            job.failure = error
        finally:
            self._in_io_thread = False
        job.finishes_at = self._loop.now + self._spent
        self._loop.at(job.finishes_at, self.process, self._finish, io_thread, job)
        del job  # a failure knows this frame: as on a real disk it must not keep the job's files open

    def _finish(self, io_thread: IoThread, job: _Job) -> None:
        jobs = self._io_threads.get(io_thread)
        if not jobs or jobs[0] is not job:
            return  # it was hastened and is over
        jobs.popleft()
        if jobs:
            self._loop.at(self._loop.now + 1e-6, self.process, self._start, io_thread)
        job.done(job.result, job.failure)

    def hasten(self, factor: float) -> None:
        """The disk is faster by `factor` from now on, also in the call that it is working on."""
        now = self._loop.now
        self.disk.root.hasten(now, factor)
        for io_thread, jobs in self._io_threads.items():
            if jobs and jobs[0].finishes_at is not None and jobs[0].finishes_at > now:
                jobs[0].finishes_at = now + (jobs[0].finishes_at - now) / factor
                self._loop.at(jobs[0].finishes_at, self.process, self._finish, io_thread, jobs[0])

    async def run(self, io_thread: IoThread, work: Callable[[], T]) -> T:
        return await in_io_thread(self, io_thread, work)

    def close(self) -> None:
        self._io_threads.clear()
