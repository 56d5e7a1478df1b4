"""Data replication of a node as one thing: what partitions report goes to the side that acts on it."""

from __future__ import annotations

import asyncio
import logging

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

    def changed(self, partition: Partition) -> None:
        self.leader.partition_changed(partition)
        self.follower.partition_changed(partition)

    def appended(self, partition: Partition) -> None:
        self.leader.appended(partition)

    def durable(self, partition: Partition) -> None:
        if partition.feeder is not None:
            self.follower.acknowledge(partition)

    def start_moved(self, partition: Partition, log_start_offset: int) -> None:
        task = asyncio.get_running_loop().create_task(partition.log.advance_start(log_start_offset))
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the start of a log stays where it is: %s", error)

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
