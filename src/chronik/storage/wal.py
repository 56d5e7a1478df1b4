"""The write-ahead log of a node: every partition's appends, one sync for all of them.

Appends gather while the disk is busy; a round takes all that gathered, writes it with one call, syncs once
and tells every entry's sink on the loop. There is no timer while the disk is idle: the first append starts a
round at once. A profile makes rounds start at least `interval` apart once enough entries come to make
waiting pay.

A failed round is taken back as a whole: its sinks hear `rejected`, newest first, so that each log can cut its
tail; the file is left behind, since after a failed sync its contents are anyone's guess.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from chronik.metrics import COUNTS, Histogram, clock
from chronik.model import StorageError
from chronik.records.batch import Buffer
from chronik.storage.company import Company
from chronik.storage.disk import Disk, File, Lane
from chronik.storage.inline import Inline
from chronik.storage.spares import Spares
from chronik.storage.wal_format import ENTRY_HEADER_BYTES, encode_header, with_round

log = logging.getLogger(__name__)

ROUND_BYTES_MAX: Final = 16 * 1024 * 1024
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
INLINE_BYTES_MAX: Final = 24 * 1024
ZEROED_SHARE: Final = 128
"""Small rounds land in bytes that were written before, so that their sync need not wait for the file system's
journal to record them as used: one round in a while writes zeros behind itself, this share of the file."""
ZEROED_BYTES_MAX: Final = 512 * 1024
_PAGE: Final = memoryview(bytes(4096))
COMPANY_SECONDS_MAX: Final = 0.002
"""How long a small round waits for those that usually come along (`company`).
The loop counts whole milliseconds: a shorter time may be none."""
COMPANY_MAX: Final = 32
WAIT_PAYS: Final = 3
"""To wait for company pays if it takes no longer than so many rounds."""
GATHER_TURNS_MAX: Final = 8
"""How many turns of the loop a round waits at most while each of them brings more entries."""


class WalSink(Protocol):
    """What stands behind an entry, usually a partition's log."""

    def committed(self, token: int) -> None:
        """The entry appended with this token is on disk, with all of the sink's entries before it."""

    def rejected(self, token: int, error: StorageError) -> None:
        """The entry is not on disk and never will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalProfile:
    interval_ms: float
    """Rounds start at least this far apart ..."""
    eager_below: int
    """... unless fewer entries than this wait: then gathering would only add latency."""


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


class _Pending(NamedTuple):
    header: bytes
    payload: Buffer
    sink: WalSink
    token: int
    sequence: int


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
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._in_round: list[_Pending] = []
        self._round_started = 0.0
        self._round_clock = 0.0
        self._timer: asyncio.Handle | None = None
        self._next_sequence = next_sequence
        self._next_round = next_round
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
        self._closed = False
        self._inline = Inline()
        self._company = Company()
        self._awaited = 0
        """How many entries a round waits for that could start; 0 if none does."""
        self._awaited_since = 0.0
        self.stats = WalStats()

    # --- appending ---------------------------------------------------------------------------------

    def append(
        self,
        kind: int,
        topic_id: bytes,
        partition: int,
        offset: int,
        payload: Buffer,
        sink: WalSink,
        token: int,
    ) -> int:
        """Queue an entry; its sink hears of it once it is on disk. Returns its sequence number."""
        if self._closed:
            raise StorageError("the WAL is closed")
        sequence = self._next_sequence
        self._next_sequence = sequence + 1
        # The header is made here and not when the round starts: there everybody waits for it.
        header = encode_header(kind, sequence, self._next_round, topic_id, partition, offset, payload)
        pending = self._pending
        pending.append(_Pending(header, payload, sink, token, sequence))
        self._pending_bytes += len(payload) + ENTRY_HEADER_BYTES
        if self._awaited:
            if len(pending) >= self._awaited:
                waited = self._disk.clock() - self._awaited_since
                self._company.came(in_time=waited <= WAIT_PAYS * self._inline.seconds)
                self._stop_waiting()
        elif not self._in_round and self._timer is None:
            self._schedule_round()
        return sequence

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    @property
    def waiting(self) -> list[_Pending]:
        """Entries that are not on disk yet, in their order."""
        return [*self._in_round, *self._pending]

    @property
    def depth(self) -> int:
        return len(self._pending) + len(self._in_round)

    @property
    def full(self) -> bool:
        """Senders should not be read from until `when_room` calls."""
        return len(self._pending) >= self._options.queue_depth or self._pending_bytes >= QUEUE_BYTES_MAX

    def when_room(self, callback: Callable[[], None]) -> None:
        self.stats.backpressure_events += 1
        self._room_waiters.append(callback)

    async def drained(self) -> None:
        """Returns when everything appended so far is on disk (or was rejected)."""
        while self._pending or self._in_round:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(future)
            await future

    # --- rounds ------------------------------------------------------------------------------------

    def _schedule_round(self) -> None:
        """Start a round on this turn's end, so that what this turn still appends comes along."""
        profile = self._options.profile
        wait = 0.0
        if profile.interval_ms and len(self._pending) >= profile.eager_below:
            wait = self._round_started + profile.interval_ms / 1000 - self._loop.time()
        if wait > 0:
            self._timer = self._loop.call_later(wait, self._start_round)
        else:
            self._timer = self._loop.call_soon(self._gather, 0, 0)

    def _gather(self, turns: int, seen: int) -> None:
        """Let the loop look at its sockets, again as long as that brings more: one sync for all of it."""
        waiting = len(self._pending)
        if turns == 0 or (waiting > seen and turns < GATHER_TURNS_MAX):
            self._timer = self._loop.call_soon(self._gather, turns + 1, waiting)
        elif waiting < (expected := self._company.expected) and self._may_wait_for(expected):
            self._awaited = expected
            self._awaited_since = self._disk.clock()
            self._timer = self._loop.call_later(COMPANY_SECONDS_MAX, self._nobody_came)
        else:
            self._start_round()

    def _may_wait_for(self, entries: int) -> bool:
        """Whether this round will be one of those that hold up the loop, and the profile lets them gather."""
        profile = self._options.profile
        return (
            profile.interval_ms > 0
            and entries < COMPANY_MAX
            and self._disk.is_local
            and self._pending_bytes <= INLINE_BYTES_MAX
            and self._inline.may(self._disk.clock())
        )

    def _nobody_came(self) -> None:
        self._company.stayed_away(len(self._pending))
        self._awaited = 0
        self._start_round()

    def _stop_waiting(self) -> None:
        """All that were expected are here: start at the end of this turn."""
        self._awaited = 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_soon(self._start_round)

    def _start_round(self) -> None:
        self._timer = None
        entries, size = self._take_round()
        if not entries:
            return
        self._next_round += 1
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

        def work() -> tuple[File, int]:
            return self._write(file, buffers, size, first_sequence, zero_ahead=is_small)

        if is_small and self._disk.is_local and self._inline.may(self._disk.clock()):
            self._run_inline(work)
        else:
            self._disk.submit(Lane.WAL, work, self._round_done)

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
        self._company.round_done()
        self._round_done(result, failure)
        del failure  # no circle with its frames, or files that they know would stay open

    def _take_round(self) -> tuple[list[_Pending], int]:
        if self._pending_bytes <= ROUND_BYTES_MAX:
            entries, size = self._pending, self._pending_bytes
            self._pending, self._pending_bytes = [], 0
            return entries, size
        size = count = 0
        for entry in self._pending:
            entry_bytes = len(entry.payload) + ENTRY_HEADER_BYTES
            if count and size + entry_bytes > ROUND_BYTES_MAX:
                break
            size += entry_bytes
            count += 1
        entries = self._pending[:count]
        following = self._next_round + 1
        self._pending = [
            entry._replace(header=with_round(entry.header, following)) for entry in self._pending[count:]
        ]
        self._pending_bytes -= size
        return entries, size

    def _write(
        self, file: File | None, buffers: list[Buffer], size: int, first_sequence: int, *, zero_ahead: bool
    ) -> tuple[File, int]:
        """In the WAL lane: nobody else touches the file or its number meanwhile."""
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
                # Pages are overwritten as a whole, or the system would have to read the old ones before.
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
        self._disk.submit(Lane.BACKGROUND, file.close, lambda _result, _error: None)

    def _round_done(self, result: tuple[File, int] | None, error: BaseException | None) -> None:
        entries, self._in_round = self._in_round, []
        if result is None:
            self._round_failed(entries, error)
            return
        self._file, written = result
        self._position += written
        if self._pending:
            self._schedule_round()
        stats = self.stats
        stats.rounds += 1
        stats.entries += len(entries)
        stats.bytes += written
        seconds = clock() - self._round_clock
        stats.round_seconds.observe(seconds)
        stats.round_entries.observe(len(entries))
        # What follows is durable with what precedes it: a sink hears of its newest entry alone.
        for sink, token in {entry.sink: entry.token for entry in entries}.items():
            sink.committed(token)
        self._settle()
        if self._position > self._options.file_bytes // 2:
            self._spares.request()

    def _round_failed(self, entries: list[_Pending], error: BaseException | None) -> None:
        self.stats.failed_rounds += 1
        if self._file is not None:
            self._retire_file(self._file)
        failure = StorageError(f"the WAL cannot be written: {error}")
        log.error("a commit round of %d entries failed and is taken back: %s", len(entries), error)
        doomed = entries + self._pending
        self._pending, self._pending_bytes = [], 0
        for entry in reversed(doomed):
            entry.sink.rejected(entry.token, failure)
        self._settle()

    def _settle(self) -> None:
        if self._room_waiters and not self.full:
            waiters, self._room_waiters = self._room_waiters, []
            for callback in waiters:
                callback()
        if self._idle_waiters and not self._pending and not self._in_round:
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
        """Nobody needs these files any more: they serve again, if there is room to keep them."""
        paths = [file.path for file in gone]
        await self._disk.run(Lane.BACKGROUND, lambda: self._spares.keep(paths, is_room=is_room))
        for file in gone:  # in place: the lane may be adding one
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
