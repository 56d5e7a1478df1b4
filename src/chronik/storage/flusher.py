"""Moves durable batches from memory into segment files, and keeps the cache of recent ones bounded.

Segment writes need no sync: the WAL has the bytes until a checkpoint has synced the files. So they are
batched: one pass every `INTERVAL_SECONDS`, or sooner when much has gathered, whatever the number of
partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from chronik.model import UNFLUSHED_BYTES_MAX
from chronik.storage.disk import Disk, IoThread
from chronik.storage.log import PartitionLog, WritePlan

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.5
"""Time between passes. Each pass may open a partition's index files to add one or two entries, so fewer
passes mean fewer opens."""
FLUSH_BYTES: Final = 8 * 1024 * 1024
RETRY_SECONDS: Final = 1.0
CACHE_BYTES_MAX: Final = 32 * 1024 * 1024


class Flusher:
    def __init__(self, disk: Disk, *, unflushed_bytes_max: int = UNFLUSHED_BYTES_MAX) -> None:
        self._disk = disk
        self._unflushed_bytes_max = unflushed_bytes_max
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[PartitionLog, None] = {}
        self.unflushed_bytes = 0
        self.full = False
        """Whether more than `unflushed_bytes_max` wait to be written to segments. Senders wait then."""
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._passes = 0
        """Passes started so far."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Callers that wait until what is durable is in files, with the pass that writes it."""
        self._room_waiters: list[Callable[[], None]] = []
        self._cached: deque[tuple[PartitionLog, int]] = deque()
        self._cached_bytes = 0
        self._unsynced: dict[PartitionLog, None] = {}
        """Logs written to since the last checkpoint."""
        self.failing = False

    def when_room(self, callback: Callable[[], None]) -> None:
        self._room_waiters.append(callback)

    def mark(self, log: PartitionLog) -> None:
        self._dirty[log] = None
        if self._busy:
            return
        if self.unflushed_bytes >= FLUSH_BYTES:
            self._cancel_timer()
            self._start_pass()
        elif self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_SECONDS, self._on_timer)

    def take_unsynced(self) -> list[PartitionLog]:
        """For a checkpoint, which syncs their files: the logs written to since this was called before."""
        unsynced, self._unsynced = self._unsynced, {}
        return list(unsynced)

    def give_back_unsynced(self, logs: Iterable[PartitionLog]) -> None:
        """They could not be synced: the next checkpoint has to."""
        self._unsynced |= dict.fromkeys(logs)

    def forget(self, log: PartitionLog) -> None:
        """The log is deleted: no checkpoint syncs it any more."""
        self._unsynced.pop(log, None)

    def note_bytes(self, change: int) -> None:
        self.unflushed_bytes += change
        self.full = self.unflushed_bytes > self._unflushed_bytes_max

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if not self._busy:
            self._start_pass()

    def _start_pass(self) -> None:
        self._passes += 1
        dirty, self._dirty = self._dirty, {}
        plans: list[tuple[PartitionLog, WritePlan]] = []
        for log_ in dirty:
            if log_.deleted:
                continue
            plan = log_.plan_write()
            if plan is not None:
                plans.append((log_, plan))
        if not plans:
            self._finish_waiters()
            return
        self._busy = True
        done_count = 0

        def work() -> None:
            nonlocal done_count
            for log_, plan in plans:
                if not log_.deleted:
                    _perform(log_, plan)
                done_count += 1

        def done(_result: None, error: BaseException | None) -> None:
            self._busy = False
            self._pass_done(plans, done_count, error)

        self._disk.submit(IoThread.BACKGROUND, work, done)

    def _pass_done(
        self, plans: list[tuple[PartitionLog, WritePlan]], done_count: int, error: BaseException | None
    ) -> None:
        is_whole = error is None
        for log_, plan in plans[:done_count]:
            if log_.deleted:
                continue
            if plan.truncations != log_.truncations:
                self._dirty[log_] = None  # the log was truncated meanwhile: write again what is left
                is_whole = False
                continue
            log_.note_flushed(plan)
            self._unsynced[log_] = None
            size = sum(len(view) for _, _, views in plan.runs for view in views)
            self._cached.append((log_, size))
            self._cached_bytes += size
            self.note_bytes(-size)
        self._shrink_cache()
        if self._room_waiters and not self.full:
            waiters, self._room_waiters = self._room_waiters, []
            for callback in waiters:
                callback()
        if error is not None:
            if not self.failing:
                log.error(
                    "segments cannot be written (the WAL keeps the data, this is tried again): %s", error
                )
            self.failing = True
            for log_, plan in plans[done_count:]:
                log_.give_back(plan)
                self._dirty[log_] = None
            self._timer = self._loop.call_later(RETRY_SECONDS, self._on_timer)
            return
        self.failing = False
        if is_whole:
            self._finish_waiters()
        if self._dirty:
            self._cancel_timer()
            self._timer = self._loop.call_later(
                0 if self._waiters or self.unflushed_bytes >= FLUSH_BYTES else INTERVAL_SECONDS,
                self._on_timer,
            )

    def _shrink_cache(self) -> None:
        while self._cached_bytes > CACHE_BYTES_MAX and self._cached:
            log_, size = self._cached.popleft()
            self._cached_bytes -= size
            freed = 0
            while freed < size:
                dropped = log_.drop_cached()
                if not dropped:
                    break
                freed += dropped

    def _finish_waiters(self) -> None:
        """All that the pass began with is in files. Later passes have nothing to do if nothing is dirty."""
        waiting, self._waiters = self._waiters, []
        for last_pass, future in waiting:
            if last_pass > self._passes and self._dirty:
                self._waiters.append((last_pass, future))
            elif not future.done():
                future.set_result(None)

    async def flushed(self) -> None:
        """Waits until every batch that is durable at the time of the call is in its segment file."""
        if not self._busy and not self._dirty:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((self._passes + 1, future))
        if not self._busy:
            self._cancel_timer()
            self._start_pass()
        await future

    def close(self) -> None:
        self._cancel_timer()

    def flush_now(self, log_: PartitionLog) -> None:
        """Blocking, for recovery: write the durable batches to segments and drop them from memory."""
        plan = log_.plan_write()
        if plan is None:
            return
        _perform(log_, plan)
        log_.note_flushed(plan)
        self._unsynced[log_] = None
        self._dirty.pop(log_, None)
        while freed := log_.drop_cached():
            self.note_bytes(-freed)


def _perform(log_: PartitionLog, plan: WritePlan) -> None:
    """Blocking: write one log's share of a pass."""
    if plan.runs:
        log_.make_directory()
    for segment, position, views in plan.runs:
        segment.write(position, views)
    for segment in plan.sealed:
        segment.seal()
