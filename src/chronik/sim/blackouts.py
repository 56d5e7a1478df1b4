"""What a power loss may take from a relaxed topic: nothing, as long as one replica in sync keeps running.

When the last one goes, records may be missing that were acknowledged less than the topic's window before a
member of the ISR lost power. Anything else that is missing is an anomaly.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, Final

from chronik.model import TopicPartition

if TYPE_CHECKING:
    from chronik.sim.cluster import SimCluster
    from chronik.sim.world import SimNode

SLACK_SECONDS: Final = 0.2
"""What a sync on a healthy disk takes at most, with what it waits for."""
_TROUBLES: Final = ("slow", "full", "failed sync", "pause", "moved leader", "clock drift", "power loss on a")
"""Faults after which a sync may come late: its disk or its process stood still."""


def has_trouble(node: SimNode) -> bool:
    """Whether a fault of this run may keep a node from syncing in time."""
    return any(name.startswith(_TROUBLES) for name in node.world.trace.counts)


class Blackouts:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._dark: dict[SimNode, float] = {}
        """When each node lost power that has not served since."""
        self._isr: dict[TopicPartition, tuple[int, tuple[int, ...]]] = {}
        """Newest partition epoch that any node knew, with the ISR."""
        self.intervals: dict[TopicPartition, list[tuple[float, float]]] = defaultdict(list)
        """For each partition the intervals in which records were sent that may be missing."""

    def serves(self, node: SimNode) -> None:
        self._dark.pop(node, None)

    def crashed(self, node: SimNode, *, power_lost: bool) -> None:
        """Called before the node is gone."""
        now = self._cluster.loop.now
        if power_lost:
            self._dark[node] = now
        for tp, within in self._relaxed().items():
            members = [self._cluster.by_id(member) for member in self._isr[tp][1]]
            if any(one is not None and one is not node and one.is_serving for one in members):
                continue
            for member in members:
                if member is not None and member in self._dark:
                    dark = self._dark[member]
                    self.intervals[tp].append((dark - within - SLACK_SECONDS, dark))

    def _relaxed(self) -> dict[TopicPartition, float]:
        """Relaxed partitions with their windows; notes the newest ISR of each."""
        found: dict[TopicPartition, float] = {}
        is_troubled = any(map(has_trouble, self._cluster.nodes))
        for node in self._cluster.nodes:
            for partition in self._cluster.partitions(node):
                if not partition.config.durability.is_relaxed:
                    continue
                known = partition.partition_epoch, partition.isr
                self._isr[partition.tp] = max(self._isr.get(partition.tp, known), known)
                seconds = partition.config.durability.sync_within_ms / 1000
                found[partition.tp] = inf if is_troubled else seconds
        return found
