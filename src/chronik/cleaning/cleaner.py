"""Keeps this node's logs tidy: retention and compaction, one partition after the other, in the background.

Every replica cleans its own log, below the watermark it knows of: what one has deleted another may still
have. All file work runs in the disk's background I/O thread in short steps with pauses between them, so that
appends never wait long for the I/O thread, the device or the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from chronik.cleaning.compactor import Compactor, Pace
from chronik.metadata.broker_config import broker_value
from chronik.metadata.topic_config import LOCAL_IS_TOTAL
from chronik.metrics import CleanerStats
from chronik.model import ChronikError, StorageError, TopicPartition
from chronik.replication.partition import Partition
from chronik.storage.deletion_lines import age_text, log_deletion
from chronik.storage.disk import IoThread
from chronik.storage.log import PartitionLog
from chronik.storage.retention import Retention, SegmentFacts, expired, survey
from chronik.storage.store import LogStore
from chronik.tasks import Tasks

log = logging.getLogger(__name__)

_TICK_SECONDS_MAX: Final = 5.0
"""How soon a changed interval is noticed."""


Work: TypeAlias = Callable[[Partition], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningConfig:
    """Read again in every round, so that a change takes effect at once."""

    retention_check_interval_ms: int = 300_000
    producer_id_expiration_ms: int = 86_400_000
    compaction_backoff_ms: int = 15_000
    pace: Pace = field(default_factory=Pace)

    @staticmethod
    def resolve(layers: tuple[Mapping[str, str], ...]) -> CleaningConfig:
        """Read the values from this broker's configs, strongest layer first."""
        backoff_ms = broker_value("log.cleaner.backoff.ms", layers)
        return CleaningConfig(
            retention_check_interval_ms=broker_value("log.retention.check.interval.ms", layers),
            producer_id_expiration_ms=broker_value("producer.id.expiration.ms", layers),
            compaction_backoff_ms=backoff_ms,
            pace=Pace(
                bytes_per_second=broker_value("log.cleaner.io.max.bytes.per.second", layers),
                map_bytes_max=broker_value("log.cleaner.dedupe.buffer.size", layers),
                checkpoint_seconds=min(Pace().checkpoint_seconds, backoff_ms / 1000),
            ),
        )


class CleanedReplicas(Protocol):
    def all(self) -> Iterable[Partition]: ...


class Cleaner:
    def __init__(
        self,
        *,
        store: LogStore,
        replicas: CleanedReplicas,
        config: Callable[[], CleaningConfig],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._replicas = replicas
        self._config = config
        self._now_ms = now_ms
        self.stats = CleanerStats()
        self._compactor = Compactor(store, now_ms=now_ms, pace=lambda: config().pace, stats=self.stats)
        self._tasks = Tasks("cleaner")
        self._undated: set[TopicPartition] = set()
        """Partitions whose segments without a usable timestamp were logged already."""
        self._failing: dict[str, dict[TopicPartition, str]] = {}
        """Last error logged per (task, partition), so that a failure that repeats is logged once."""

    def start(self) -> None:
        retaining = self._every(lambda: self._config().retention_check_interval_ms, self.retain)
        compacting = self._every(lambda: self._config().compaction_backoff_ms, self.compact)
        self._tasks.spawn(retaining, "retention")
        self._tasks.spawn(compacting, "compaction")

    async def stop(self) -> None:
        await self._tasks.close()

    async def _every(self, interval_ms: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            left = last + interval_ms() / 1000 - loop.time()
            if left > 0:
                await asyncio.sleep(min(left, _TICK_SECONDS_MAX))
                continue
            await work()
            last = loop.time()

    async def _guarded(self, kind: str, partitions: Iterable[Partition], work: Work) -> None:
        """Run `work` on each partition. A failure of one does not keep the others from being cleaned."""
        said, failing = self._failing.get(kind, {}), {}
        for partition in partitions:
            if partition.log.deleted:
                continue
            try:
                await work(partition)
            except (OSError, ChronikError) as error:
                if partition.log.deleted:
                    continue
                failing[partition.tp] = str(error)
                if said.get(partition.tp) != str(error):
                    log.error("%s cannot be cleaned, this is tried again: %s", partition.tp, error)
            except Exception as error:
                failing[partition.tp] = str(error)
                log.exception("%s cannot be cleaned", partition.tp)
        self._failing[kind] = failing
        self.stats.failing_partitions = len(set().union(*self._failing.values()))

    # --- compaction --------------------------------------------------------------------------------

    async def compact(self) -> None:
        """One round of compaction over every compacted partition of this node that is worth it."""
        partitions = [partition for partition in self._replicas.all() if partition.config.is_compacted]
        self._compactor.begin_round(partition.log for partition in partitions)
        await self._guarded("ending segments", partitions, self._compactor.end_old_segment)
        await self._guarded("compaction", partitions, self._compactor.compact)

    # --- retention ---------------------------------------------------------------------------------

    async def retain(self) -> None:
        """One round of retention over every partition of this node."""
        partitions = list(self._replicas.all())
        self._undated &= {partition.tp for partition in partitions}
        await self._guarded("retention", partitions, self._retain)
        await self._store.sweep()
        if self._store.waits_for_checkpoint():
            # A node that takes few writes makes checkpoints seldom; the disk is not to wait for that.
            with contextlib.suppress(OSError, StorageError):  # the store logs what keeps it from checkpoints
                await self._store.checkpoint()

    async def _retain(self, partition: Partition) -> None:
        log_, config, now_ms = partition.log, partition.config, self._now_ms()
        if log_.producers is not None:
            log_.producers.expire(now_ms=now_ms, expiration_ms=self._config().producer_id_expiration_ms)
        if log_.is_loaded:
            log_.schedule_delete(log_.take_before_start())
        wanted, limit = _wanted(partition)
        is_empty = log_.log_start_offset == log_.log_end_offset
        if not config.deletes_old_segments or is_empty or wanted == Retention():
            return
        facts = await log_.disk.run(IoThread.BACKGROUND, lambda: survey(log_, now_ms))
        if wanted.retention_ms >= 0:
            self._tell_undated(log_, facts)
        gone = expired(facts, wanted, high_watermark=limit, now_ms=now_ms)
        if gone is None or not log_.log_start_offset < gone.start_offset <= limit:
            return
        start = gone.start_offset
        await log_.load()
        if start == log_.log_end_offset and log_.segments[-1].size_bytes:
            log_.roll(start)  # the active segment is past its time too
        local = "local." if partition.is_tiered and config.remote_storage_enable else ""
        log_deletion(
            log_,
            start,
            age=age_text(gone.youngest_ms, now_ms, is_dated=gone.is_dated),
            rule=" and ".join(
                f"{local}{rule}={getattr(wanted, rule.replace('.', '_'))}" for rule in gone.rules
            ),
        )
        self.stats.retention_moves += 1
        await log_.advance_start(start)

    def _tell_undated(self, log_: PartitionLog, facts: list[SegmentFacts]) -> None:
        """Say once that records without a believable timestamp age from the last write to their file."""
        undated = [one for one in facts if one.size_bytes and not one.is_dated]
        if undated and log_.tp not in self._undated:
            log.info(
                "%s: %d of %d segments have no timestamp after 1970: for retention.ms they age from their "
                "last write",
                log_.tp,
                len(undated),
                len(facts),
            )
            self._undated.add(log_.tp)
        elif not undated:
            self._undated.discard(log_.tp)


def _wanted(partition: Partition) -> tuple[Retention, int]:
    """The retention of what is on this disk, and the offset up to which it may take anything.

    With tiered storage a local copy goes only when the metadata log says that the object store has it.
    """
    config, remote = partition.config, partition.remote
    total = Retention(retention_ms=config.retention_ms, retention_bytes=config.retention_bytes)
    is_empty = remote is None or remote.start_offset == remote.end_offset
    if not partition.is_tiered or (is_empty and config.remote_log_copy_disable):
        return total, partition.high_watermark
    limit = min(partition.high_watermark, 0 if remote is None else remote.end_offset)
    if not config.remote_storage_enable or config.remote_log_copy_disable:
        return total, limit  # as Kafka: local.retention.* count while segments go to the store
    local_ms, local_bytes = config.local_retention_ms, config.local_retention_bytes
    local = Retention(
        retention_ms=total.retention_ms if local_ms == LOCAL_IS_TOTAL else local_ms,
        retention_bytes=total.retention_bytes if local_bytes == LOCAL_IS_TOTAL else local_bytes,
    )
    return local, limit
