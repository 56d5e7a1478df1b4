"""A replica whose disk lost records leaves the lead and the ISR, and copies them from the new leader.

It cuts its log only when the metadata log has a leader epoch in which it neither leads nor is in sync. What
it acknowledged in earlier epochs does not count there, so nothing relies any more on what it drops.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from chronik.log_lines import RepeatingLine
from chronik.metadata.commands import ChangePartition
from chronik.metadata.elections import elect
from chronik.metadata.store import MetadataStore
from chronik.model import RequestError, StorageError, Unavailable
from chronik.storage.disk import IoThread
from chronik.storage.soundness import sound_until
from chronik.tasks import Tasks

if TYPE_CHECKING:
    from chronik.replication.replica import Replica
    from chronik.storage.log_parts import SegmentDamage

log = logging.getLogger(__name__)
_still_leads: Final = RepeatingLine(
    log, logging.INFO, "%s: this damaged replica still leads or is in the ISR: %s"
)

REPAIRS_AT_ONCE: Final = 3
"""Repairs of a partition that begin at once. Each further one waits twice as long as the one before, so that
a failing disk is not rewritten all the time; until then readers of the damaged batch have to ask again."""
WAIT_SECONDS: Final = 1.0
WAIT_SECONDS_MAX: Final = 300.0
ASK_SECONDS_MAX: Final = 5.0
ASK_AGAIN_SECONDS: Final = 0.1
ASK_COUNT_MAX: Final = 50


class Repairs:
    """Proposes leader epochs in which damaged replicas of this node neither lead nor are in sync."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._tasks = Tasks("repair")
        self._begun: Counter[tuple[bytes, int]] = Counter()

    def begin(self, partition: Replica, damage: SegmentDamage) -> None:
        """`Replica.repair_from` is called with the offset from which it needs everything again, and
        `Replica.repair_failed` if no other replica can take over."""
        self._begun[_key(partition)] += 1
        number = self._begun[_key(partition)]
        seconds = wait_seconds(number)
        log.error(
            "%s: %s (repair %d since the start, in %.0f s: other replicas have the records)",
            partition.tp,
            damage,
            number,
            seconds,
        )
        self._tasks.spawn(self._repair(partition, damage, seconds), f"the repair of {partition.tp}")

    async def _repair(self, partition: Replica, damage: SegmentDamage, wait: float) -> None:
        log_ = partition.log
        if wait:
            await asyncio.sleep(wait)
        if not partition.is_damaged:
            return  # removed, or given a log anew
        if not any(segment is damage.segment for segment in log_.segments):
            # Retention, a deletion or compaction took it while this waited. A read tells of what is left.
            log.info("%s: the damaged segment is no longer there, nothing to repair", partition.tp)
            partition.repair_failed()
            return
        try:
            find = partial(sound_until, list(log_.segments), damage.segment)
            partition.repair_from(await log_.disk.run(IoThread.READ, find))
            for _ in range(ASK_COUNT_MAX):
                if not partition.is_damaged or not await self._step_back(partition):
                    break
                await asyncio.sleep(ASK_AGAIN_SECONDS)
        except (OSError, StorageError) as error:
            log.error("%s: the damaged log cannot be read: %s", partition.tp, error)
        if partition.is_damaged:
            partition.repair_failed()

    async def _step_back(self, partition: Replica) -> bool:
        """Ask for a leader epoch without this replica in lead or ISR. Returns False if no other can lead."""
        state, node_id = self._metadata.state, partition.node_id
        current = state.partition(partition.tp)
        topic = state.topics.get(partition.tp.topic)
        if current is None or topic is None:
            return False
        others = tuple(member for member in current.isr if member != node_id)
        leader = current.leader
        if leader == node_id:
            leader = elect(topic, current, others, state.is_alive)
        if leader not in others or not state.is_alive(leader):
            return False
        command = ChangePartition(
            topic_id=partition.topic_id,
            partition=partition.tp.partition,
            partition_epoch=current.partition_epoch,
            leader=leader,
            isr=others,
            bump_leader_epoch=True,
        )
        try:
            await self._metadata.submit(command, timeout_s=ASK_SECONDS_MAX)
        except (Unavailable, RequestError) as error:
            _still_leads(partition.tp, partition.tp, error)
        return True

    async def stop(self) -> None:
        await self._tasks.close()


def wait_seconds(number: int) -> float:
    """How long a partition's repair with this number waits."""
    later = number - REPAIRS_AT_ONCE
    return min(WAIT_SECONDS_MAX, WAIT_SECONDS * 2.0 ** min(later - 1, 30)) if later > 0 else 0.0


def _key(partition: Replica) -> tuple[bytes, int]:
    return partition.log.topic_id_bytes, partition.tp.partition
