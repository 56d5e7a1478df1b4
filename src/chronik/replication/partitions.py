"""The partitions that have a replica on this node, by name and by id.

The replica manager keeps it in step with the metadata; handlers and links look partitions up.
"""

from __future__ import annotations

from chronik.model import TopicPartition
from chronik.replication.partition import Partition


class Partitions:
    __slots__ = ("by_id", "by_tp")

    def __init__(self) -> None:
        self.by_tp: dict[TopicPartition, Partition] = {}
        self.by_id: dict[tuple[bytes, int], Partition] = {}
        """By topic id and partition number, as frames name them."""

    def add(self, partition: Partition) -> None:
        tp = partition.tp
        self.by_tp[tp] = self.by_id[partition.log.topic_id_bytes, tp.partition] = partition

    def remove(self, partition: Partition) -> None:
        del self.by_tp[partition.tp]
        self.by_id.pop((partition.log.topic_id_bytes, partition.tp.partition), None)
