"""Ends what is too old or too much over both tiers, and removes objects that nothing names any more.

Deletion is never in the way of anybody: objects go some time after they stopped to count, so that reads under
way can end, and a crash in between only leaves them to the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from uuid import UUID

from chronik.metadata.commands import Noop
from chronik.metrics import TieringStats
from chronik.records.timestamps import is_believable
from chronik.replication.partition import Partition
from chronik.storage.deletion_lines import age_text, log_deletion
from chronik.storage.disk import IoThread
from chronik.storage.retention import Retention, SegmentFacts, expired, survey
from chronik.tiering.catalog import Catalog, Key
from chronik.tiering.manifest import RemoteSegment, epoch_in
from chronik.tiering.remote_logs import TieredLogs

__all__ = ["RemoteRetention"]

log = logging.getLogger(__name__)


class RemoteRetention:
    def __init__(
        self, catalog: Catalog, logs: TieredLogs, stats: TieringStats, now_ms: Callable[[], int]
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._stats = stats
        self._now_ms = now_ms
        self._orphans: dict[Key, dict[str, float]] = {}
        """Objects that count no more, and since when this node has known it."""

    # --- what is too old or too much -----------------------------------------------------------------

    async def retain(self, partition: Partition) -> None:
        """Leader: apply retention.ms and retention.bytes to the whole log."""
        remote, config, log_ = partition.remote, partition.config, partition.log
        if remote is None or remote.start_offset == remote.end_offset:
            return
        if not config.remote_storage_enable and config.remote_log_delete_on_disable:
            # What is on every disk stays there, and in the store, for as long as retention lets it.
            await self._logs.retain_from(partition, min(remote.end_offset, _latest_start(partition)))
            return
        if log_.log_start_offset > remote.end_offset:
            # Records between the tiers are gone: what is in the store is before a gap, and no log any more.
            log.error("%s: the remote log ends at %d, before the local one", partition.tp, remote.end_offset)
            await self._logs.retain_from(partition, log_.log_start_offset)
            return
        if not config.deletes_old_segments:
            return  # the nodes' default for cleanup.policy is compact by now
        wanted = Retention(retention_ms=config.retention_ms, retention_bytes=config.retention_bytes)
        now_ms = self._now_ms()
        local = await log_.disk.run(IoThread.BACKGROUND, lambda: survey(log_, now_ms))
        manifest = await self._catalog.manifest(partition)
        facts = [_facts(one, now_ms) for one in manifest.segments]
        facts += [one for one in local if one.next_offset > remote.end_offset]
        is_growing = config.remote_storage_enable and not config.remote_log_copy_disable
        limit = remote.end_offset if is_growing else partition.high_watermark
        gone = expired(facts, wanted, high_watermark=limit, now_ms=now_ms)
        if gone is None or gone.start_offset <= partition.log_start_offset:
            return
        rule = " and ".join(f"{rule}={getattr(wanted, rule.replace('.', '_'))}" for rule in gone.rules)
        age = age_text(gone.youngest_ms, now_ms, is_dated=gone.is_dated)
        log_deletion(log_, gone.start_offset, age=age, rule=rule)
        await self._logs.retain_from(partition, gone.start_offset)

    # --- what nothing names --------------------------------------------------------------------------

    async def tidy(self, partition: Partition) -> bool:
        """Leader: remove objects of this partition that count no more. Whether some are left for later.

        Only those of this leader epoch and earlier ones: whoever leads later may have written the others. An
        object goes if it was not named at two looks, `file.delete.delay.ms` apart.
        """
        found = await self._catalog.door.listed(self._catalog.folder(partition))
        async with self._catalog.changing(partition):
            epoch = partition.leader_epoch
            await self._catalog.metadata.submit(Noop())  # what was decided before this is known now
            if not partition.is_leader or partition.leader_epoch != epoch:
                return False
            named = {one.name for one in (await self._catalog.manifest(partition)).segments}
            if partition.remote is not None:
                named.add(partition.remote.manifest)
            prefix = self._catalog.folder(partition) + "/"
            names = (one.name.removeprefix(prefix) for one in found)
            orphans = [prefix + name for name in names if _is_orphan(name, epoch, named)]
            due = self._due(partition, orphans)
            await self._catalog.door.delete(due)
        self._stats.removed_objects += len(due)
        return len(due) < len(orphans)

    def _due(self, partition: Partition, orphans: list[str]) -> list[str]:
        """Which of them were orphans long enough ago already."""
        now, delay = asyncio.get_running_loop().time(), partition.config.file_delete_delay_ms / 1000
        key = (partition.topic_id.bytes, partition.tp.partition)
        before = self._orphans.pop(key, {})
        since = {path: before.get(path, now) for path in orphans}
        due = [path for path, seen in since.items() if now - seen >= delay]
        left = {path: seen for path, seen in since.items() if now - seen < delay}
        if left:
            self._orphans[key] = left
        return due

    def forget_missing(self, known: Container[Key]) -> None:
        for key in [key for key in self._orphans if key not in known]:
            del self._orphans[key]

    async def purge(self) -> bool:
        """Controller: remove what belongs to topics that do not exist any more. Whether there was any."""
        catalog = self._catalog
        if catalog.metadata.state.cluster_id is None:
            return False
        found = await catalog.door.folders(catalog.root)
        unknown = [name for name in found if _topic_of(name) not in catalog.metadata.state.topic_names]
        if not unknown:
            return False
        await catalog.metadata.submit(Noop())  # a topic that was created before the listing is known now
        removed = 0
        for name in unknown:
            topic_id = _topic_of(name)
            if topic_id is None or topic_id in catalog.metadata.state.topic_names:
                continue
            left = [one.name for one in await catalog.door.listed(catalog.topic_folder(topic_id))]
            await catalog.door.delete(left)
            removed += len(left)
            if left:
                log.info("topic %s is gone: %d objects are removed from the store", topic_id, len(left))
        self._stats.removed_objects += removed
        return removed > 0


def _facts(segment: RemoteSegment, now_ms: int) -> SegmentFacts:
    """The facts that `storage.retention` judges local segments by: which timestamps count, and what it does
    without any."""
    is_dated = is_believable(segment.max_timestamp_ms, now_ms)
    written_ms = segment.written_ms if 0 <= segment.written_ms < now_ms else now_ms
    youngest_ms = segment.max_timestamp_ms if is_dated else written_ms
    return SegmentFacts(segment.base_offset, segment.end_offset, segment.log_bytes, youngest_ms, is_dated)


def _is_orphan(name: str, epoch: int, named: Container[str]) -> bool:
    written_in = epoch_in(name)
    return written_in is not None and written_in <= epoch and name not in named


def _latest_start(partition: Partition) -> int:
    """The highest start of a replica's local log that this leader knows of."""
    starts = [one.log_start_offset for one in partition.followers.values()]
    return max([partition.log.log_start_offset, *starts])


def _topic_of(folder: str) -> UUID | None:
    try:
        return UUID(hex=folder)
    except ValueError:
        return None
