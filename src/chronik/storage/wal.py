"""The write-ahead log of a node: every partition's appends, one sync for all of them.

Appends gather while the disk is busy (`wal_queue`); a round takes metadata first, then data, writes it with
one call, syncs once and tells every entry's sink on the loop. There is no timer while the disk is idle: the
first append starts a round at once. A profile makes rounds start at least `interval` apart once enough
entries come to make waiting pay.

A round that holds nothing but entries of relaxed topics is reported as soon as it is written. A sync of its
own follows, beside the rounds that are written meanwhile, within the time that the entries allow; a round
that has to be synced does it too. A round that has to be synced does not begin while such a sync is under
way: if both ran at once and the device failed, the kernel would tell only one of them.

A failed round is taken back as a whole: its sinks hear `rejected`, newest first, so that each log can cut its
tail. Writing continues in another file, since after a failed sync the contents of this one are unknown. What
had been reported and was not synced is written again there, out of the logs' tails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, cast

from chronik.metrics import COUNTS, Histogram, clock
from chronik.model import Pressure, StorageError, invariant
from chronik.records.batch import Buffer
from chronik.storage.disk import Disk, File, IoThread
from chronik.storage.inline import Inline
from chronik.storage.unsynced import Unsynced
from chronik.storage.wal_queue import ROUND_BYTES_MAX, Pending, RelaxedSink, WalQueue
from chronik.storage.wal_writer import WalFile, WalWriter

log = logging.getLogger(__name__)

INLINE_BYTES_MAX: Final = 24 * 1024
GATHER_TURNS_MAX: Final = 8
"""How many turns of the loop a round waits at most while each of them brings more entries."""
DOUBT_RETRY_SECONDS: Final = 1.0
"""Least time between two attempts to write again what a failed sync left in doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalProfile:
    interval_ms: float
    """Least time between the starts of two rounds."""
    eager_below: int
    """If fewer entries than this wait, `interval_ms` is ignored: gathering would only add latency."""


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
    relaxed_rounds: int = 0
    """Rounds that were reported before they were synced."""
    relaxed_sync_seconds: Histogram = field(default_factory=Histogram)
    """Their syncs, each for many of them."""
    failed_rounds: int = 0


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
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._queue = WalQueue(
            next_sequence=next_sequence,
            next_round=next_round,
            entries_max=options.queue_depth,
            wake=self._schedule_round,
        )
        self.append = self._queue.add
        self.pressure: Pressure = self._queue
        """Senders should not be read from while this is full."""
        self._in_round: list[Pending] = []
        self._round_started = 0.0
        self._round_clock = 0.0
        self._timer: asyncio.Handle | None = None
        self._is_round_synced = True
        """Whether the round under way syncs everything before it."""
        self._sync_within = 0.0
        self._is_held = False
        """Whether the next round waits for the sync under way, or for another one behind it."""
        self._unsynced = Unsynced()
        self._sync_timer: asyncio.TimerHandle | None = None
        self._doubt_timer: asyncio.TimerHandle | None = None
        self._doubted_at = -inf
        self._sync_error: BaseException | None = None
        """Why the sync under way failed, until the round under way is over."""
        self._syncs = 0
        """Syncs beside the rounds that have begun. A failure counts as one, so that the sync that was under
        way then is known to be out of date."""
        self._sync_waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Callers that wait until what is written is synced, with the number of the sync that does it."""
        self._writer = WalWriter(disk, directory, options.file_bytes, files, spares)
        self.files = self._writer.files
        self.removable = self._writer.removable
        self.release = self._writer.release
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._cut: asyncio.Future[None] | None = None
        self._is_cut_in_round = False
        self._closed = False
        self._inline = Inline()
        self._inline_relaxed = Inline()
        """The same for rounds without a sync, which are much quicker."""
        self.stats = WalStats()

    # --- appending ---------------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The first sequence number of what is appended from now on. Only valid while nothing waits."""
        return self._queue.next_sequence

    @property
    def waiting(self) -> list[Pending]:
        """Entries that are not on disk yet, in their order."""
        return [*self._in_round, *self._queue.waiting()]

    @property
    def depth(self) -> int:
        return self._queue.count + len(self._in_round)

    @property
    def times_waited_for(self) -> int:
        """How often a sender had to wait for room."""
        return self._queue.times_waited_for

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
            if self._cut is future:  # else its caller was cancelled, and another one may wait by now
                self._is_cut_in_round = True
                found(sequence)

        try:
            self._queue.cut(taken)
            if not self._is_cut_in_round or self._in_round:
                await future
        finally:
            self._cut = None
        await self.synced()

    async def synced(self) -> None:
        """Returns when everything that is written is synced. StorageError if that fails."""
        if self._unsynced.is_in_doubt:
            raise StorageError("what the WAL could not sync has to be written again first")
        if self._unsynced:
            future: asyncio.Future[None] = self._loop.create_future()
            # The sync under way has everything that was written before it began.
            number = self._syncs + 1 if self._unsynced.is_written else self._syncs
            self._sync_waiters.append((number, future))
            self._begin_sync()
            await future

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
            self._timer = self._loop.call_soon(self._start_round, 0, 0)

    def _start_round(self, turns: int = GATHER_TURNS_MAX, seen: int = 0) -> None:
        """Start a round: once a turn of the loop brings no more entries than were `seen` before it, or after
        `GATHER_TURNS_MAX` turns."""
        waiting = self._queue.count
        if turns == 0 or (waiting > seen and turns < GATHER_TURNS_MAX):
            self._timer = self._loop.call_soon(self._start_round, turns + 1, waiting)
            return
        self._timer = None
        queue, writer = self._queue, self._writer
        is_idle = self._unsynced.is_idle
        if not is_idle and self._must_wait():
            self._is_held = True
            self._begin_sync()
            if not self._unsynced.is_written:  # all that is written is synced before the next round begins
                queue.begin_number()
            return
        taken = queue.take()
        if taken is None:
            queue.is_awake = False
            return
        entries, size = taken.entries, taken.size_bytes
        self._in_round = entries
        self._round_started = self._loop.time()
        self._round_clock = clock()
        buffers: list[Buffer] = []
        for entry in entries:
            buffers += entry[:2]
        if size > writer.room_bytes and (full := writer.give_up()) is not None:
            self._close_file(full)
        self._sync_within = taken.sync_within
        self._is_round_synced = not taken.sync_within
        first_sequence = entries[0].sequence
        # What the sync has to take along counts too.
        more = 0 if is_idle or not self._is_round_synced else self._unsynced.all_bytes
        is_small = size + more <= INLINE_BYTES_MAX
        # Zeros are for small rounds that follow. Data that waits would overwrite them, and wait for them.
        zero_ahead = size <= INLINE_BYTES_MAX and not queue.count
        is_synced = self._is_round_synced
        work = partial(
            writer.write, buffers, size, first_sequence, zero_ahead=zero_ahead, is_synced=is_synced
        )
        inline = self._inline if self._is_round_synced else self._inline_relaxed
        if is_small and self._disk.is_local and inline.may(self._disk.clock()):
            self._run_inline(work, inline)
        else:
            self._disk.submit(IoThread.WAL, work, self._round_done)

    def _must_wait(self) -> bool:
        """Whether something has to be synced before the next round begins."""
        queue, unsynced = self._queue, self._unsynced
        if queue.next_bytes > self._writer.room_bytes:
            return bool(unsynced)  # a full file is synced before there is another one
        return queue.is_next_strict and unsynced.is_syncing

    def _run_inline(self, work: Callable[[], int], inline: Inline) -> None:
        """A small round: handing it to a thread and back would take longer than to do it."""
        written: int | None = None
        failure: BaseException | None = None
        started = self._disk.clock()
        try:
            written = work()
        except Exception as error:
            failure = error
        inline.took(started, self._disk.clock())
        self._round_done(written, failure)
        del failure  # breaks the cycle with its frames, which would keep files open

    def _close_file(self, file: File) -> None:
        """In the thread of the syncs while there is one, which must not find another file in its place."""
        thread = IoThread.WAL_SYNC if self._unsynced.is_syncing else IoThread.BACKGROUND
        self._disk.submit(thread, file.close, lambda _result, _error: None)

    def _round_done(self, written: int | None, error: BaseException | None) -> None:
        entries, self._in_round = self._in_round, []
        failure, self._sync_error = error or self._sync_error, None
        if written is None or failure is not None:
            self._round_failed(entries, failure)
            return
        if self._writer.is_half_full:
            self._writer.spares.request()
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
        tokens = {entry.sink: entry.token for entry in entries}
        is_idle = self._unsynced.is_idle and not self._sync_waiters
        if self._is_round_synced and not is_idle:
            self._tell_synced(self._unsynced.take_all(), inf)
        if not self._sync_within:
            for sink, token in tokens.items():
                sink.committed(token)
            if not is_idle:
                self._unsynced.settle()
        else:
            relaxed = cast(dict[RelaxedSink, int], tokens)  # a round is relaxed if all its entries are
            for one, token in relaxed.items():
                one.written(token)
            stats.relaxed_rounds += 1
            self._unsynced.add(relaxed, written, self._sync_within, self._loop.time())
        if not self._unsynced.is_idle:
            self._look_after_syncs()
        if self._is_cut_in_round and self._cut is not None and not self._cut.done():
            self._cut.set_result(None)
        if self._queue.is_waited_for or self._idle_waiters:
            self._settle()

    def _round_failed(self, entries: list[Pending], error: BaseException | None) -> None:
        self.stats.failed_rounds += 1
        failure = StorageError(f"the WAL cannot be written: {error}")
        log.error("a commit round of %d entries failed and was rolled back: %s", len(entries), error)
        if (file := self._writer.give_up()) is not None:
            self._close_file(file)
        self._unsynced.fail()
        self._syncs += 1
        self._is_held = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rejected = entries + self._queue.clear()
        self._queue.is_awake = False
        for entry in reversed(rejected):
            entry.sink.rejected(entry.token, failure)
        if self._cut is not None and not self._cut.done():
            self._cut.set_exception(failure)
        waiters, self._sync_waiters = self._sync_waiters, []
        for _, future in waiters:
            if not future.done():
                future.set_exception(failure)
        self._settle()
        self._unsynced.settle()
        if self._unsynced.is_in_doubt:
            self._write_doubted()

    # --- syncs of relaxed rounds ---------------------------------------------------------------------

    @property
    def unsynced_bytes(self) -> int:
        """Written and reported, but not synced yet."""
        return self._unsynced.all_bytes

    @property
    def unsynced_seconds(self) -> float:
        """Age of the oldest of that."""
        return self._unsynced.age(self._loop.time())

    def _look_after_syncs(self) -> None:
        """Begin a sync if one is due, else see to it that it begins in time."""
        unsynced = self._unsynced
        if unsynced.is_syncing or not unsynced.is_written:
            return
        now = self._loop.time()
        if self._sync_waiters or unsynced.is_much or unsynced.due <= now:
            self._begin_sync()
        elif self._sync_timer is None or self._sync_timer.when() > unsynced.due:
            if self._sync_timer is not None:
                self._sync_timer.cancel()
            self._sync_timer = self._loop.call_at(unsynced.due, self._on_sync_timer)

    def _on_sync_timer(self) -> None:
        self._sync_timer = None
        self._look_after_syncs()

    def _begin_sync(self) -> None:
        """Unless one is under way, or the round under way syncs everything: then this is called again."""
        unsynced, file = self._unsynced, self._writer.file
        if unsynced.is_syncing or not unsynced.is_written or (self._in_round and self._is_round_synced):
            return
        invariant(file is not None, "what is not synced stands in a file")
        assert file is not None
        unsynced.begin()
        self._syncs += 1
        done = partial(self._sync_done, self._syncs, clock())
        self._disk.submit(IoThread.WAL_SYNC, file.sync, done)

    def _sync_done(self, number: int, started: float, _result: None, error: BaseException | None) -> None:
        if number != self._syncs:
            return  # a round failed meanwhile: what this was to sync is written again
        if error is not None:
            self._sync_failed(error)
            return
        self.stats.relaxed_sync_seconds.observe(clock() - started)
        self._tell_synced(self._unsynced.take_synced(), number)
        if not self._unsynced and not self._in_round:
            self._queue.begin_number()
        if self._is_held:
            self._is_held = False
            self._start_round()
        self._look_after_syncs()

    def _sync_failed(self, error: BaseException) -> None:
        if self._in_round:
            self._sync_error = error  # the round is written to the same file: it fails when it is over
        else:
            self._round_failed([], error)

    def _tell_synced(self, synced: dict[RelaxedSink, int], number: float) -> None:
        for sink, token in synced.items():
            sink.synced(token)
        waiters, self._sync_waiters = self._sync_waiters, []
        for wanted, future in waiters:
            if wanted > number:
                self._sync_waiters.append((wanted, future))
            elif not future.done():
                future.set_result(None)

    def _write_doubted(self) -> None:
        """Have the logs write again what is in doubt: at once, but not again and again to a failing disk."""
        now = self._loop.time()
        if self._doubt_timer is not None or self._closed or not self._unsynced.is_in_doubt:
            return
        if now - self._doubted_at >= DOUBT_RETRY_SECONDS:
            self._doubted_at = now
            self._unsynced.write_again()
        else:
            self._doubt_timer = self._loop.call_later(DOUBT_RETRY_SECONDS, self._on_doubt_timer)

    def _on_doubt_timer(self) -> None:
        self._doubt_timer = None
        self._write_doubted()

    def _settle(self) -> None:
        self._queue.tell_room()
        if self._idle_waiters and not self._queue.count and not self._in_round:
            idle, self._idle_waiters = self._idle_waiters, []
            for future in idle:
                if not future.done():
                    future.set_result(None)

    # --- the end -----------------------------------------------------------------------------------

    async def close(self) -> None:
        await self.drained()
        with suppress(StorageError):
            await self.synced()
        self._closed = True
        await self._writer.spares.close()
        for timer in (self._timer, self._sync_timer, self._doubt_timer):
            if timer is not None:
                timer.cancel()
        self._writer.close()
