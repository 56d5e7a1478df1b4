"""Tells leaders what is on this node's disk: one acknowledgement per partition and turn of the loop."""

from __future__ import annotations

import asyncio

from chronik.links import frames
from chronik.links.frames import FrameType
from chronik.links.link import Link
from chronik.replication.replica import Replica


class AckSender:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Replica, None] = {}
        self._is_scheduled = False

    def durable(self, partition: Replica) -> None:
        """The log grew on disk, or starts later: tell the leader at the end of this turn."""
        self._waiting[partition] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send_all)

    def _send_all(self) -> None:
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, {}
        for partition in waiting:
            feeder = partition.feeder
            if feeder is not None:
                self.send(feeder, partition)

    def send(self, feeder: Link, partition: Replica, sample: int = 0) -> None:
        log_ = partition.log
        feeder.outbox.send(
            frames.bounds_frame(
                FrameType.ACK,
                log_.topic_id_bytes,
                partition.tp.partition,
                partition.leader_epoch,
                log_.durable_end_offset,
                log_.log_start_offset,
                sample,
            )
        )

    def reset(self, partition: Replica, feeder: Link) -> None:
        """This node lost batches that the leader counts as sent. REFUSE makes the leader send OPEN again."""
        topic_id, epoch = partition.log.topic_id_bytes, partition.leader_epoch
        feeder.outbox.send(frames.head(FrameType.REFUSE, topic_id, partition.tp.partition, epoch))
