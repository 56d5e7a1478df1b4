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
        self._waiting: dict[Replica, int] = {}
        """Partitions to acknowledge at the end of this turn, with the sample number to send back, or 0."""
        self._is_scheduled = False

    def send_soon(self, partition: Replica, sample: int = 0) -> None:
        """The log grew on disk, or starts later, or the leader wants a sample back: tell it when this turn
        ends."""
        self._waiting[partition] = sample or self._waiting.get(partition, 0)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send_all)

    def _send_all(self) -> None:
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, {}
        for partition, sample in waiting.items():
            feeder, log_ = partition.feeder, partition.log
            if feeder is None:
                continue
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
