"""Decides when a partition's log is compacted, drives the compaction, and puts its result into the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from chronik.metadata.config_def import LONG_MAX
from chronik.metrics import CleanerStats, clock
from chronik.records.timestamps import is_believable
from chronik.replication.partition import Partition
from chronik.storage.cleanable import (
    Cleanable,
    CleanedPosition,
    Policy,
    cleanable,
    load_position,
    save_position,
)
from chronik.storage.compaction import Compaction, CompactionResult, SegmentGroup, Task, last_of_producers
from chronik.storage.disk import IoThread
from chronik.storage.log import PartitionLog
from chronik.storage.retention import SegmentFacts, first_timestamp, survey
from chronik.storage.store import LogKey, LogStore

log = logging.getLogger(__name__)

_REST_SECONDS: Final = 0.0003
_REST_BUSY_SECONDS: Final = 0.008
"""Pauses after each compaction step (about 0.125 ms of work): on an idle node, and on a busy one."""
_BUSY_SECONDS: Final = 0.25
"""A node counts as busy for this long after each WAL round, so that an occasional write is not held up."""
_HURRY_SECONDS: Final = 60.0
"""Shortens the pauses of a busy node in a long round: to a half after this time, to a third after twice it.
So compaction keeps up with writes that are too many for the full pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    bytes_per_second: float = 32 * 1024 * 1024
    map_bytes_max: int = 64 * 1024 * 1024
    rest_seconds: float = _REST_SECONDS
    rest_busy_seconds: float = _REST_BUSY_SECONDS
    checkpoint_seconds: float = 1.0
    """Minimum age of the last checkpoint before compaction requests new ones."""


class Rests:
    """The pause after each compaction step: longer on a busy node, shorter the longer the round takes."""

    def __init__(self, began: float = 0.0) -> None:
        self.began = began
        """When the current round over all logs began."""
        self._wal_rounds = 0
        self._busy_until = 0.0

    def after_step(self, pace: Pace, now: float, wal_rounds: int) -> float:
        if wal_rounds != self._wal_rounds:
            self._wal_rounds, self._busy_until = wal_rounds, now + _BUSY_SECONDS
        if now >= self._busy_until:
            return pace.rest_seconds
        hurried = pace.rest_busy_seconds / (1 + (now - self.began) / _HURRY_SECONDS)
        return max(hurried, pace.rest_seconds)


class Compactor:
    def __init__(
        self, store: LogStore, *, now_ms: Callable[[], int], pace: Callable[[], Pace], stats: CleanerStats
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._pace = pace
        self._stats = stats
        self._positions: dict[LogKey, CleanedPosition] = {}
        self._dirty: dict[LogKey, float] = {}
        """Share of each log that was not compacted yet, at the last look."""
        self._rests = Rests()
        self._numbers = count(1)

    def begin_round(self, logs: Iterable[PartitionLog]) -> None:
        """Start a round over `logs`, which are all compacted logs. Drops the state of logs that are gone."""
        self._rests.began = asyncio.get_running_loop().time()
        known = {_key(log_) for log_ in logs}
        self._positions = {key: one for key, one in self._positions.items() if key in known}
        self._dirty = {key: one for key, one in self._dirty.items() if key in known}
        self._stats.dirty_ratio_max = max(self._dirty.values(), default=0.0)

    async def compact(self, partition: Partition) -> None:
        log_, config, now_ms = partition.log, partition.config, self._now_ms()
        if log_.log_start_offset == log_.log_end_offset:
            return
        await log_.load()
        position = await self._position(log_)
        facts = await log_.disk.run(IoThread.BACKGROUND, lambda: survey(log_, now_ms))
        policy = Policy(
            min_dirty_ratio=config.min_cleanable_dirty_ratio,
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
        )
        since = await self._dirty_since(log_, facts, position, policy, now_ms)

        def plan(settled_below: int) -> Cleanable:
            return cleanable(
                facts,
                position,
                policy,
                limit_offset=partition.last_stable_offset,
                settled_below=settled_below,
                now_ms=now_ms,
                dirty_since_ms=since,
            )

        found = plan(log_.retirement.settled_below)
        if not found.is_due and plan(LONG_MAX).is_due:
            await self._settle()
            found = plan(log_.retirement.settled_below)
        self._dirty[_key(log_)] = found.dirty_ratio
        if found.is_due:
            await self._compact(partition, facts[: found.segments], position, now_ms)
            self._dirty[_key(log_)] = 0.0
        self._stats.dirty_ratio_max = max(self._dirty.values())

    async def end_old_segment(self, partition: Partition) -> None:
        """Roll an active segment older than `segment_age_max_ms`: only closed segments can be compacted.

        Done for all logs before the first is compacted, so that the same checkpoints settle all of them.
        """
        log_, now_ms = partition.log, self._now_ms()
        if log_.log_start_offset == log_.log_end_offset:
            return
        await log_.load()
        active = log_.segments[-1]
        if active.created_ms < 0 and active.written_bytes:
            found = await log_.disk.run(IoThread.BACKGROUND, lambda: first_timestamp(log_, active))
            active.note_created(found if is_believable(found, now_ms) and found < now_ms else now_ms)
        if active is not log_.segments[-1] or not active.size_bytes or active.created_ms < 0:
            return
        if now_ms - active.created_ms >= log_.config.segment_age_max_ms(log_.tp, active.base_offset):
            log_.roll(log_.log_end_offset)

    async def _position(self, log_: PartitionLog) -> CleanedPosition:
        key = _key(log_)
        found = self._positions.get(key)
        if found is None:
            found = await log_.disk.run(IoThread.BACKGROUND, lambda: load_position(log_.disk, log_.directory))
            if found.first_dirty_offset > log_.log_end_offset:
                found = CleanedPosition()  # the log was cut since
            self._positions[key] = found
        return found

    async def _dirty_since(
        self,
        log_: PartitionLog,
        facts: list[SegmentFacts],
        position: CleanedPosition,
        policy: Policy,
        now_ms: int,
    ) -> int:
        """Timestamp of the first uncompacted record; one that cannot be right counts as for retention."""
        dirty = {one.base_offset: one for one in facts[:-1] if one.next_offset > position.first_dirty_offset}
        first = next((segment for segment in log_.segments if segment.base_offset in dirty), None)
        if policy.max_lag_ms == LONG_MAX or first is None:
            return now_ms
        found = await log_.disk.run(IoThread.BACKGROUND, lambda: first_timestamp(log_, first))
        return found if is_believable(found, now_ms) else dirty[first.base_offset].youngest_ms

    async def _settle(self) -> None:
        """Closed segments wait for two checkpoints, since recovery may start from either of the last two.
        Both are written now: an idle node would not write them by itself, a busy one much later."""
        if self._store.checkpoint_age() >= self._pace().checkpoint_seconds:
            await self._store.checkpoint()
            await self._store.checkpoint()

    async def _compact(
        self, partition: Partition, facts: list[SegmentFacts], position: CleanedPosition, now_ms: int
    ) -> None:
        log_, config = partition.log, partition.config
        bases = {one.base_offset for one in facts}
        segments = [segment for segment in log_.segments if segment.base_offset in bases]
        if not segments:
            return
        end_offset = facts[-1].next_offset
        task = Task(
            log=log_,
            segments=segments,
            end_offset=end_offset,
            first_dirty_offset=position.first_dirty_offset,
            delete_retention_ms=config.delete_retention_ms,
            now_ms=now_ms,
            map_bytes_max=self._pace().map_bytes_max,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
        )
        aborted = log_.producers.aborted_between(0, end_offset) if log_.producers is not None else []
        compaction = Compaction(task, aborted, last_of_producers(log_.producers))
        log_.retirement.compaction_began()
        self._stats.is_compacting = True
        try:
            await self._drive(log_, compaction, position)
        except BaseException:
            log_.disk.submit(IoThread.BACKGROUND, compaction.abandon, lambda _result, _error: None)
            raise
        finally:
            log_.retirement.compaction_ended(next(self._numbers), end_offset)
            self._stats.is_compacting = False
        await self._note(log_, compaction.result)

    async def _drive(self, log_: PartitionLog, compaction: Compaction, before: CleanedPosition) -> None:
        await self._steps(log_, compaction.build_map())
        groups: list[SegmentGroup] = await log_.disk.run(IoThread.BACKGROUND, compaction.groups)
        for group in groups:
            is_last = group is groups[-1]
            await self._steps(log_, compaction.clean(group.segments, is_last=is_last))
            changed, new = await log_.disk.run(IoThread.BACKGROUND, partial(compaction.commit, group))
            if not changed:
                continue
            log_.replace_segments(group.segments, new, group.end_offset)
            if not is_last:
                await self._save_position(log_, _position_behind(group, compaction.result, before))

    async def _steps(self, log_: PartitionLog, work: Iterator[int]) -> None:
        def step() -> tuple[int | None, float]:
            began = clock()
            return next(work, None), clock() - began

        while True:
            size, seconds = await log_.disk.run(IoThread.BACKGROUND, step)
            self._stats.step_seconds.observe(seconds)
            if size is None:
                return
            self._stats.compacted_bytes += size
            pace, now = self._pace(), asyncio.get_running_loop().time()
            rest = self._rests.after_step(pace, now, self._store.wal.stats.rounds)
            await asyncio.sleep(max(size / pace.bytes_per_second, rest))

    async def _save_position(self, log_: PartitionLog, position: CleanedPosition) -> None:
        self._positions[_key(log_)] = position

        def save() -> None:
            if not log_.deleted:
                save_position(log_.disk, log_.directory, position)

        await log_.disk.run(IoThread.BACKGROUND, save)

    async def _note(self, log_: PartitionLog, result: CompactionResult) -> None:
        if log_.producers is not None:
            log_.producers.forget_aborted(result.settled_aborts)
        position = CleanedPosition(first_dirty_offset=result.first_dirty_offset, horizon_ms=result.horizon_ms)
        await self._save_position(log_, position)
        self._stats.compactions += 1
        self._stats.removed_records += result.records_removed
        self._stats.removed_bytes += max(result.bytes_before - result.bytes_after, 0)
        if result.unreadable:
            self._stats.unreadable_batches += len(result.unreadable)
            log.warning(
                "%s: compaction left %d batches as they are because they cannot be decoded, the first: %s",
                log_.tp,
                len(result.unreadable),
                result.unreadable[0],
            )
        log.info(
            "%s: compacted up to offset %d, %d records removed, %d of %d bytes left",
            log_.tp,
            result.first_dirty_offset,
            result.records_removed,
            result.bytes_after,
            result.bytes_before,
        )


def _position_behind(
    group: SegmentGroup, result: CompactionResult, before: CleanedPosition
) -> CleanedPosition:
    """How far the log is compacted when a group is done. Saved after each one, so that `chronik verify` can
    tell what an interrupted compaction removed from what is lost."""
    end_offset = min(group.end_offset, result.first_dirty_offset)
    return CleanedPosition(
        first_dirty_offset=max(end_offset, before.first_dirty_offset),
        horizon_ms=max(result.horizon_ms, before.horizon_ms),
    )


def _key(log_: PartitionLog) -> LogKey:
    return log_.topic_id_bytes, log_.tp.partition
