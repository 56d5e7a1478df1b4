"""Data replication of a node as one thing: what partitions report goes to the side that acts on it."""

from __future__ import annotations

import asyncio
import logging

from chronik.model import NodeId
from chronik.replication.follower import FollowerSide
from chronik.replication.leader import LeaderSide
from chronik.replication.partition import Partition

log = logging.getLogger(__name__)


class Replication:
    """The hooks of every partition of the node."""

    def __init__(self, leader: LeaderSide, follower: FollowerSide) -> None:
        self.leader = leader
        self.follower = follower
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._moving: dict[Partition, int] = {}
        """Followed partitions whose logs are about to start at these offsets."""

    def changed(self, partition: Partition) -> None:
        self.leader.partition_changed(partition)
        self.follower.partition_changed(partition)

    def appended(self, partition: Partition) -> None:
        self.leader.appended(partition)

    def watermark_moved(self, partition: Partition) -> None:
        self.leader.watermark_moved(partition)

    def durable(self, partition: Partition) -> None:
        if partition.feeder is not None:
            self.follower.acknowledge(partition)

    def start_moved(self, partition: Partition, log_start_offset: int) -> None:
        if self._moving.get(partition) == log_start_offset:
            return
        self._moving[partition] = log_start_offset
        task = asyncio.get_running_loop().create_task(self._move_start(partition, log_start_offset))
        self._tasks[task] = None
        task.add_done_callback(self._done)

    async def _move_start(self, partition: Partition, log_start_offset: int) -> None:
        try:
            await partition.log.advance_start(log_start_offset)
        finally:
            if self._moving.get(partition) == log_start_offset:
                del self._moving[partition]
        self.durable(partition)  # the leader waits to hear that it is so

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the start of a log stays where it is: %s", error)

    def is_alive(self, node_id: NodeId) -> bool:
        return self.leader.is_alive(node_id)

    def halted(self, partition: Partition) -> None:
        self.leader.ask_for_new_epoch(partition)

    def refused(self, partition: Partition) -> None:
        self.follower.begin_anew(partition)

    def start(self) -> None:
        self.leader.start()

    async def stop(self) -> None:
        await self.leader.stop()
        await self.follower.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
