"""The write-ahead log of a node: every partition's appends, one sync for all of them.

Appends gather while the disk is busy (`wal_queue`); a round takes metadata first, then data, writes it with
one call, syncs once and tells every entry's sink on the loop. There is no timer while the disk is idle: the
first append starts a round at once. A profile makes rounds start at least `interval` apart once enough
entries come to make waiting pay.

A failed round is taken back as a whole: its sinks hear `rejected`, newest first, so that each log can cut its
tail. Writing continues in another file, since after a failed sync the contents of this one are unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from chronik.metrics import COUNTS, Histogram, clock
from chronik.model import StorageError, invariant
from chronik.records.batch import Buffer
from chronik.storage.disk import Disk, File, IoThread
from chronik.storage.inline import Inline
from chronik.storage.spares import Spares
from chronik.storage.wal_queue import ROUND_BYTES_MAX, Pending, WalQueue

log = logging.getLogger(__name__)

QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
INLINE_BYTES_MAX: Final = 24 * 1024
ZEROED_SHARE: Final = 128
"""Share of the file (1/128) that a small round fills with zeros behind itself when it has used up the last
zeros. Later rounds overwrite written blocks, so their sync does not wait for the file system's journal."""
ZEROED_BYTES_MAX: Final = 512 * 1024
_PAGE: Final = memoryview(bytes(4096))
GATHER_TURNS_MAX: Final = 8
"""How many turns of the loop a round waits at most while each of them brings more entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalProfile:
    interval_ms: float
    """Least time between the starts of two rounds."""
    eager_below: int
    """With fewer entries than this waiting, `interval_ms` is ignored: gathering would only add latency."""


PROFILES: Final = {
    "ultra": WalProfile(interval_ms=0, eager_below=0),
    "high": WalProfile(interval_ms=1, eager_below=32),
    "medium": WalProfile(interval_ms=5, eager_below=0),
    "low": WalProfile(interval_ms=10, eager_below=0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WalOptions:
    profile: WalProfile = PROFILES["high"]
    queue_depth: int = 10_000
    file_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class WalStats:
    rounds: int = 0
    entries: int = 0
    bytes: int = 0
    round_seconds: Histogram = field(default_factory=Histogram)
    round_entries: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    failed_rounds: int = 0
    backpressure_events: int = 0


@dataclass(slots=True)
class WalFile:
    path: Path
    number: int
    first_sequence: int


def wal_file_name(number: int) -> str:
    return f"{number:012d}.wal"


class Wal:
    def __init__(
        self,
        *,
        disk: Disk,
        directory: Path,
        options: WalOptions,
        next_sequence: int,
        next_round: int,
        files: Sequence[WalFile],
        spares: Sequence[Path] = (),
    ) -> None:
        """`files` are those that recovery found; writing goes on in another one behind them."""
        self._disk = disk
        self._directory = directory
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._queue = WalQueue(next_sequence=next_sequence, next_round=next_round, wake=self._schedule_round)
        self.append = self._queue.add
        self._in_round: list[Pending] = []
        self._round_started = 0.0
        self._round_clock = 0.0
        self._timer: asyncio.Handle | None = None
        self.files: list[WalFile] = list(files)
        self._file: File | None = None
        self._file_number = files[-1].number if files else -1
        self._position = 0
        self._zeros = memoryview(bytes(min(options.file_bytes // ZEROED_SHARE, ZEROED_BYTES_MAX)))
        self._zeroed_end = 0
        self._is_used = False
        self._spares = Spares(disk, directory, options.file_bytes, spares)
        self._room_waiters: list[Callable[[], None]] = []
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._cut: asyncio.Future[None] | None = None
        self._is_cut_in_round = False
        self._closed = False
        self._inline = Inline()
        self.stats = WalStats()

    # --- appending ---------------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """While nothing waits: the first sequence number of what is appended from now on."""
        return self._queue.next_sequence

    @property
    def waiting(self) -> list[Pending]:
        """Entries that are not on disk yet, in their order."""
        return [*self._in_round, *self._queue.waiting()]

    @property
    def depth(self) -> int:
        return self._queue.count + len(self._in_round)

    @property
    def full(self) -> bool:
        """Senders should not be read from until `when_room` calls."""
        queue = self._queue
        return queue.data_count >= self._options.queue_depth or queue.data_bytes >= QUEUE_BYTES_MAX

    def when_room(self, callback: Callable[[], None]) -> None:
        self.stats.backpressure_events += 1
        self._room_waiters.append(callback)

    async def drained(self) -> None:
        """Returns when nothing waits any more; under load that may take for ever, see `cut`."""
        while self._queue.count or self._in_round:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(future)
            await future

    async def cut(self, found: Callable[[int], None]) -> None:
        """Returns when everything appended so far is on disk, whatever is appended meanwhile.

        Calls `found` as `WalQueue.cut` says. Raises StorageError if a round fails before that.
        """
        invariant(self._cut is None, "two cuts of the WAL at a time")
        future = self._cut = self._loop.create_future()
        self._is_cut_in_round = False

        def taken(sequence: int) -> None:
            self._is_cut_in_round = True
            found(sequence)

        try:
            self._queue.cut(taken)
            if self._is_cut_in_round and not self._in_round:
                return
            await future
        finally:
            self._cut = None

    # --- rounds ------------------------------------------------------------------------------------

    def _schedule_round(self) -> None:
        """Start a round on this turn's end, so that what this turn still appends comes along."""
        if self._closed:
            raise StorageError("the WAL is closed")
        self._queue.is_awake = True
        profile = self._options.profile
        wait = 0.0
        if profile.interval_ms and self._queue.count >= profile.eager_below:
            wait = self._round_started + profile.interval_ms / 1000 - self._loop.time()
        if wait > 0:
            self._timer = self._loop.call_later(wait, self._start_round)
        elif self._queue.data_bytes >= ROUND_BYTES_MAX:  # the round is full: nothing to gather
            self._timer = self._loop.call_soon(self._start_round)
        else:
            self._timer = self._loop.call_soon(self._gather, 0, 0)

    def _gather(self, turns: int, seen: int) -> None:
        """Start the round once a turn of the loop brings no more entries, or after `GATHER_TURNS_MAX`."""
        waiting = self._queue.count
        if turns == 0 or (waiting > seen and turns < GATHER_TURNS_MAX):
            self._timer = self._loop.call_soon(self._gather, turns + 1, waiting)
        else:
            self._start_round()

    def _start_round(self) -> None:
        self._timer = None
        taken = self._queue.take()
        if taken is None:
            self._queue.is_awake = False
            return
        entries, size = taken.entries, taken.size_bytes
        self._in_round = entries
        self._round_started = self._loop.time()
        self._round_clock = clock()
        buffers: list[Buffer] = []
        for entry in entries:
            buffers += entry[:2]
        file = self._file
        if file is not None and self._position + size > self._options.file_bytes:
            self._retire_file(file)
            file = None
        first_sequence = entries[0].sequence
        is_small = size <= INLINE_BYTES_MAX
        # Zeros are for small rounds that follow. Data that waits would overwrite them, and wait for them.
        zero_ahead = is_small and not self._queue.count
        work = partial(self._write, file, buffers, size, first_sequence, zero_ahead=zero_ahead)
        if is_small and self._disk.is_local and self._inline.may(self._disk.clock()):
            self._run_inline(work)
        else:
            self._disk.submit(IoThread.WAL, work, self._round_done)

    def _run_inline(self, work: Callable[[], tuple[File, int]]) -> None:
        """A small round: handing it to a thread and back would take longer than to do it."""
        result: tuple[File, int] | None = None
        failure: BaseException | None = None
        started = self._disk.clock()
        try:
            result = work()
        except Exception as error:
            failure = error
        self._inline.took(started, self._disk.clock())
        self._round_done(result, failure)
        del failure  # breaks the cycle with its frames, which would keep files open

    def _write(
        self, file: File | None, buffers: list[Buffer], size: int, first_sequence: int, *, zero_ahead: bool
    ) -> tuple[File, int]:
        """In the WAL's I/O thread: nobody else touches the file or its number meanwhile."""
        is_fresh = file is None
        if file is None:
            file = self._open_file(first_sequence)
        try:
            end = self._position + size
            if zero_ahead and end > self._zeroed_end:
                zeros = self._zeros[: max(self._options.file_bytes - end, 0)]
                buffers.append(zeros)
                self._zeroed_end = end + len(zeros)
            elif self._is_used:
                # Overwrite whole pages, or the kernel would have to read the old ones first.
                buffers.append(_PAGE[: min(-end % len(_PAGE), max(self._options.file_bytes - end, 0))])
            file.write_at(self._position, buffers)
            file.sync()
        except BaseException:
            if is_fresh:  # nobody else knows of it yet
                file.close()
            raise
        return file, size

    def _open_file(self, first_sequence: int) -> File:
        number = self._file_number + 1
        path = self._directory / wal_file_name(number)
        spare = self._spares.take()
        try:
            self._disk.rename(spare.path, path)
            self._disk.sync_directory(self._directory)
        except BaseException:
            spare.file.close()
            raise
        self._file_number = number
        self._position = 0
        self._is_used = spare.is_used
        self._zeroed_end = self._options.file_bytes if spare.is_used else 0
        self.files.append(WalFile(path, number, first_sequence))
        return spare.file

    def _retire_file(self, file: File) -> None:
        self._file = None
        self._disk.submit(IoThread.BACKGROUND, file.close, lambda _result, _error: None)

    def _round_done(self, result: tuple[File, int] | None, error: BaseException | None) -> None:
        entries, self._in_round = self._in_round, []
        if result is None:
            self._round_failed(entries, error)
            return
        self._file, written = result
        self._position += written
        if self._queue.count:
            self._schedule_round()
        else:
            self._queue.is_awake = False
        stats = self.stats
        stats.rounds += 1
        stats.entries += len(entries)
        stats.bytes += written
        seconds = clock() - self._round_clock
        stats.round_seconds.observe(seconds)
        stats.round_entries.observe(len(entries))
        # An entry is durable only after all before it, so each sink is called once, with its newest token.
        for sink, token in {entry.sink: entry.token for entry in entries}.items():
            sink.committed(token)
        if self._is_cut_in_round and self._cut is not None and not self._cut.done():
            self._cut.set_result(None)
        if self._room_waiters or self._idle_waiters:
            self._settle()
        if self._position > self._options.file_bytes // 2:
            self._spares.request()

    def _round_failed(self, entries: list[Pending], error: BaseException | None) -> None:
        self.stats.failed_rounds += 1
        if self._file is not None:
            self._retire_file(self._file)
        failure = StorageError(f"the WAL cannot be written: {error}")
        log.error("a commit round of %d entries failed and is taken back: %s", len(entries), error)
        rejected = entries + self._queue.clear()
        self._queue.is_awake = False
        for entry in reversed(rejected):
            entry.sink.rejected(entry.token, failure)
        if self._cut is not None and not self._cut.done():
            self._cut.set_exception(failure)
        self._settle()

    def _settle(self) -> None:
        if self._room_waiters and not self.full:
            waiters, self._room_waiters = self._room_waiters, []
            for callback in waiters:
                callback()
        if self._idle_waiters and not self._queue.count and not self._in_round:
            idle, self._idle_waiters = self._idle_waiters, []
            for future in idle:
                if not future.done():
                    future.set_result(None)

    # --- retiring ----------------------------------------------------------------------------------

    def removable(self, before_sequence: int) -> list[WalFile]:
        """Files all of whose entries precede `before_sequence`; the one being written is never among them."""
        out = []
        for file, following in zip(self.files, self.files[1:], strict=False):
            if following.first_sequence <= before_sequence:
                out.append(file)
        return out

    async def release(self, gone: Sequence[WalFile], *, is_room: bool) -> None:
        """Give up files that no checkpoint needs. They are kept as spares if `is_room`, else removed."""
        paths = [file.path for file in gone]
        await self._disk.run(IoThread.BACKGROUND, lambda: self._spares.keep(paths, is_room=is_room))
        for file in gone:  # in place: the I/O thread may be adding one
            self.files.remove(file)

    async def close(self) -> None:
        await self.drained()
        self._closed = True
        await self._spares.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None
