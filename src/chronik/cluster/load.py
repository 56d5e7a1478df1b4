"""What the partitions that this node leads take in and give out, in bytes a second.

Nothing counts records for it. When the controller asks, what segments have grown by and what Fetch has read
since it asked before is divided by the time in between.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from typing import Final, NamedTuple

import msgspec

from chronik.replication.partition import Partition
from chronik.replication.partitions import Partitions
from chronik.storage.log import PartitionLog

__all__ = ["LoadMeter", "NodeLoad", "PartitionLoad"]

BUSIEST_MAX: Final = 64
"""Partitions that a report names. Those that carry little are not worth moving."""
WINDOW_SHARE: Final = 0.75
"""Share of the controller's interval for which a node repeats its last report, whoever asks. Bytes come in
bursts, and others ask for a node's status too: without this the controller would judge by the time since."""


class PartitionLoad(msgspec.Struct, frozen=True, kw_only=True):
    """In bytes a second."""

    topic: str
    partition: int
    taken: int
    """What producers wrote."""
    given: int
    """What clients fetched. Copies for followers are not counted: they follow from `taken`."""


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of all partitions that a node leads, in bytes a second."""

    taken: int
    given: int
    busiest: tuple[PartitionLoad, ...] = ()


class _LastCount(NamedTuple):
    base_offset: int
    """Base offset of the active segment."""
    size_bytes: int
    """Size of the active segment."""
    read_bytes: int


class LoadMeter:
    def __init__(self, partitions: Partitions, now: Callable[[], float], interval_seconds: float) -> None:
        """`interval_seconds` is how often the controller asks."""
        self._partitions = partitions
        self._window_seconds_min = interval_seconds * WINDOW_SHARE
        self._now = now
        self._seen: dict[Partition, _LastCount] = {}
        self._at: float | None = None
        """When it was asked last."""
        self._report: NodeLoad | None = None

    def report(self) -> NodeLoad | None:
        """Since the last report; None for the first one, which has nothing to compare with."""
        now = self._now()
        seconds = 0.0 if self._at is None else now - self._at
        if self._at is not None and seconds < self._window_seconds_min:
            return self._report
        before, self._seen = self._seen, {}
        taken = given = 0
        moved: list[tuple[int, int, Partition]] = []
        for partition in self._partitions.by_tp.values():
            if not partition.is_leader or partition.is_internal:
                continue
            base_offset, size_bytes = partition.log.active_extent()
            seen = self._seen[partition] = _LastCount(base_offset, size_bytes, partition.read_bytes)
            last = before.get(partition)
            if last is None or last == seen:
                continue
            wrote, read = _grown(partition.log, last, seen), seen.read_bytes - last.read_bytes
            taken += wrote
            given += read
            moved.append((wrote, read, partition))
        self._at = now
        busiest = nlargest(BUSIEST_MAX, moved, key=lambda one: one[0] + one[1])
        self._report = (
            NodeLoad(
                taken=int(taken / seconds),
                given=int(given / seconds),
                busiest=tuple(
                    PartitionLoad(
                        topic=partition.tp.topic,
                        partition=partition.tp.partition,
                        taken=int(wrote / seconds),
                        given=int(read / seconds),
                    )
                    for wrote, read, partition in busiest
                ),
            )
            if seconds > 0
            else None
        )
        return self._report


def _grown(log: PartitionLog, last: _LastCount, now: _LastCount) -> int:
    if now.base_offset == last.base_offset or not log.is_loaded:
        return max(0, now.size_bytes - last.size_bytes)
    written = 0
    for segment in reversed(log.segments):
        if segment.base_offset < last.base_offset:
            break
        written += segment.size_bytes
    return max(0, written - last.size_bytes)
