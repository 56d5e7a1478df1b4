"""Background work of tiered storage: looks at each partition that this node leads, one after the other.

One upload at a time runs on a node. A store that is slow or gone delays uploads and clean-up, and nothing
else: local copies stay until the store has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeAlias

from chronik.log_lines import RepeatingLine
from chronik.metadata.bus import EventBus
from chronik.metadata.events import Event, Resync, TopicDeleted
from chronik.metrics import ObjectStats, TieringStats
from chronik.model import ChronikError, TopicPartition
from chronik.replication.partition import Partition
from chronik.tasks import Tasks
from chronik.tiering.catalog import Catalog, Key
from chronik.tiering.fetches import Fetches
from chronik.tiering.remote_logs import TieredLogs
from chronik.tiering.retention import RemoteRetention
from chronik.tiering.uploader import Uploader, wanted_segments

__all__ = ["Tiering"]

log = logging.getLogger(__name__)
_failed = RepeatingLine(log, logging.WARNING, "%s: tiered storage failed and is tried again: %s")

TIDY_ROUNDS: Final = 20
"""Rounds between two looks at a partition's folder, and between two at the folders of all topics."""
Work: TypeAlias = Callable[[Partition], Awaitable[bool]]


class TieredReplicas(Protocol):
    def all(self) -> Iterable[Partition]: ...


class Tiering:
    def __init__(
        self,
        *,
        catalog: Catalog,
        fetches: Fetches,
        logs: TieredLogs,
        replicas: TieredReplicas,
        is_controller: Callable[[], bool],
        may_lead: Callable[[], bool],
        interval_s: float,
        stats: TieringStats,
        now_ms: Callable[[], int],
        bus: EventBus,
    ) -> None:
        self._catalog = catalog
        self._fetches = fetches
        self._logs = logs
        self._replicas = replicas
        self._is_controller = is_controller
        self._may_lead = may_lead
        self._interval_s = interval_s
        self.stats = stats
        self._uploader = Uploader(catalog, stats)
        self._retention = RemoteRetention(catalog, logs, stats, now_ms)
        self._tasks = Tasks("tiering")
        self._tidied: dict[Key, tuple[int, int]] = {}
        """For each partition the leader epoch and the round of the last look at its folder."""
        self._round = 0
        self._purge_in = 1
        """Rounds until the next look at the folders of all topics."""
        self._failing: set[TopicPartition] = set()
        self._has_more = False
        """Whether the last round left segments that could go up at once."""
        bus.listen(self._on_event)

    @property
    def objects(self) -> ObjectStats:
        return self._catalog.door.stats

    async def object_of(self, partition: Partition, offset: int) -> str | None:
        """The name of the object that holds a record, as the manifest has it; None if none does."""
        segment = (await self._catalog.manifest(partition)).find(offset)
        return None if segment is None else self._catalog.path(partition, segment.name)

    def start(self) -> None:
        self._tasks.spawn(self._run(), "uploading")

    async def stop(self) -> None:
        await self._tasks.close()
        await self._logs.stop()
        await self._fetches.stop()
        await self._catalog.door.close()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TopicDeleted | Resync):
            self._purge_in = min(self._purge_in, 1)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0 if self._has_more else self._interval_s)
            await self.round()

    async def round(self) -> None:
        """One look at everything."""
        self._round += 1
        self._failing.clear()
        partitions = list(self._replicas.all())
        tiered = [one for one in partitions if one.is_tiered or one.remote is not None]
        known = {_key(one) for one in tiered}
        self._catalog.forget_missing(known)
        self._retention.forget_missing(known)
        self._tidied = {key: seen for key, seen in self._tidied.items() if key in known}
        await self._upload_all(tiered)
        for work in (self._retain, self._tidy):
            for partition in tiered:
                await self._guarded(partition, work)
        self._count_lag(tiered)
        self.stats.failing_partitions = len(self._failing)
        await self._purge()

    async def _upload_all(self, partitions: list[Partition]) -> None:
        """A few segments of each in turn, so that one with many keeps no other's disk from being freed. What
        is left when retention is due again is for the next round."""
        end = asyncio.get_running_loop().time() + self._interval_s
        left = partitions
        while left:
            left = [partition for partition in left if await self._guarded(partition, self._upload)]
            if asyncio.get_running_loop().time() >= end:
                self._has_more = bool(left)
                return
        self._has_more = False

    async def _guarded(self, partition: Partition, work: Work) -> bool:
        """What the work returns. A failure of one partition does not keep the others from being looked at."""
        if not partition.is_leader or partition.log.deleted or not self._may_lead():
            return False
        try:
            return await work(partition)
        except (OSError, ChronikError) as error:
            if not partition.log.deleted:
                self._note_failing(partition)
                _failed(partition.tp, partition.tp, error)
        except Exception:
            self._note_failing(partition)
            log.exception("%s: tiered storage failed", partition.tp)
        return False

    def _note_failing(self, partition: Partition) -> None:
        """At once: with a store that is away, a round may last for hours."""
        self._failing.add(partition.tp)
        self.stats.failing_partitions = max(self.stats.failing_partitions, len(self._failing))

    async def _upload(self, partition: Partition) -> bool:
        config = partition.config
        if config.remote_storage_enable and not config.remote_log_copy_disable and not config.is_compacted:
            return await self._uploader.upload_some(partition)
        return False

    async def _retain(self, partition: Partition) -> bool:
        await self._retention.retain(partition)
        return False

    async def _tidy(self, partition: Partition) -> bool:
        """At the beginning of a leader epoch, since the one before may have left something, then seldom."""
        key, epoch = _key(partition), partition.leader_epoch
        seen = self._tidied.get(key)
        if seen is not None and seen[0] == epoch and self._round - seen[1] < TIDY_ROUNDS:
            return False
        self._tidied[key] = (epoch, self._round)
        return await self._retention.tidy(partition)

    async def _purge(self) -> None:
        self._purge_in -= 1
        if self._purge_in > 0 or not self._is_controller():
            return
        try:
            self._purge_in = 1 if await self._retention.purge() else TIDY_ROUNDS
        except (OSError, ChronikError) as error:
            self._purge_in = 1
            _failed(None, "removing objects of deleted topics", error)

    def _count_lag(self, tiered: Iterable[Partition]) -> None:
        segments = size = 0
        for partition in tiered:
            if partition.is_leader and partition.config.remote_storage_enable and partition.log.is_loaded:
                for one in wanted_segments(partition):
                    segments += 1
                    size += one.size_bytes
        self.stats.lag_segments, self.stats.lag_bytes = segments, size


def _key(partition: Partition) -> Key:
    return partition.topic_id.bytes, partition.tp.partition
