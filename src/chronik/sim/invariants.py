"""What must hold in every state that a run comes to. Small, named, each with its own memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from chronik.model import TopicPartition
from chronik.sim.cluster import SimCluster
from chronik.sim.world import SimNode


class Invariant(Protocol):
    def check(self, node: SimNode) -> str | None:
        """After a turn of a serving node: what is wrong, if anything."""


class MonotonicHighWatermark:
    """The high watermark of a running replica never goes back (S24)."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._seen: dict[tuple[str, int, TopicPartition, int], int] = {}

    def check(self, node: SimNode) -> str | None:
        for partition in self._cluster.partitions(node):
            key = (node.name, node.start_count, partition.tp, partition.topic_id.int)
            watermark = partition.high_watermark
            seen = self._seen.get(key, 0)
            if watermark < seen:
                return f"{partition.tp}: the high watermark went back from {seen} to {watermark}"
            if watermark > seen:
                self._seen[key] = watermark
        return None


class OffsetsInOrder:
    """log start <= high watermark <= durable end <= log end, on every replica."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster

    def check(self, node: SimNode) -> str | None:
        for partition in self._cluster.partitions(node):
            log = partition.log
            if not (
                log.log_start_offset
                <= partition.high_watermark
                <= log.durable_end_offset
                <= log.log_end_offset
            ):
                return (
                    f"{partition.tp}: start {log.log_start_offset}, watermark {partition.high_watermark}, "
                    f"durable {log.durable_end_offset}, end {log.log_end_offset}"
                )
        return None


class TailFollowsFiles:
    """The tail in memory has no holes, and goes on where the segment files end."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster

    def check(self, node: SimNode) -> str | None:
        for partition in self._cluster.partitions(node):
            log = partition.log
            if log.flushed_offset > log.durable_end_offset:
                return f"{log.tp}: segments reach {log.flushed_offset}, the WAL {log.durable_end_offset}"
            if log.tail:
                if log.tail[-1].next_offset != log.log_end_offset:
                    return f"{log.tp}: the tail ends at {log.tail[-1].next_offset}, not {log.log_end_offset}"
            elif log.flushed_offset != log.log_end_offset:
                return (
                    f"{log.tp}: nothing in memory, {log.flushed_offset} in files, {log.log_end_offset} in all"
                )
        return None


class BoundedTasks:
    """No node gathers tasks: leaks show long before they hurt."""

    TASKS_MAX = 400

    def check(self, node: SimNode) -> str | None:
        process = node.process
        if process is not None and len(process.tasks) > self.TASKS_MAX:
            live = len(process.live_tasks())
            if live > self.TASKS_MAX:
                return f"{live} tasks are alive"
        return None


def standard(cluster: SimCluster) -> Iterable[Invariant]:
    return (
        MonotonicHighWatermark(cluster),
        OffsetsInOrder(cluster),
        TailFollowsFiles(cluster),
        BoundedTasks(),
    )
