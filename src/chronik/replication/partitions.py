"""The partitions that have a replica on this node, by name and by id.

The replica manager keeps it in step with the metadata; handlers and links look partitions up.
"""

from __future__ import annotations

from chronik.model import TopicPartition
from chronik.replication.partition import Partition


class Partitions:
    __slots__ = ("by_id", "by_topic", "by_tp")

    def __init__(self) -> None:
        self.by_tp: dict[TopicPartition, Partition] = {}
        self.by_id: dict[tuple[bytes, int], Partition] = {}
        """Partitions by topic id and partition number, as frames name them."""
        self.by_topic: dict[str, dict[int, Partition]] = {}
        """Partitions by topic name and partition number. Topics without a replica here are not in it."""

    def add(self, partition: Partition) -> None:
        tp = partition.tp
        self.by_tp[tp] = self.by_id[partition.log.topic_id_bytes, tp.partition] = partition
        self.by_topic.setdefault(tp.topic, {})[tp.partition] = partition

    def remove(self, partition: Partition) -> None:
        del self.by_tp[partition.tp]
        self.by_id.pop((partition.log.topic_id_bytes, partition.tp.partition), None)
        of_topic = self.by_topic[partition.tp.topic]
        del of_topic[partition.tp.partition]
        if not of_topic:
            del self.by_topic[partition.tp.topic]
