"""Which brokers hold the replicas of new partitions. Pure: where to begin comes in as an argument.

Leaders go round the brokers, so each leads its share; the other replicas of a partition are shifted by one
more each time the leaders have gone round, so that one broker's partitions are followed by all others. With
racks, brokers are first lined up so that neighbours are in different racks, and a rack gets a second replica
of a partition only after every rack has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chronik.model import ErrorCode, NodeId, RequestError

__all__ = ["Slot", "place"]


class Slot(NamedTuple):
    """A live broker that can take replicas."""

    broker_id: NodeId
    rack: str | None = None


def place(
    slots: Sequence[Slot],
    partition_count: int,
    replication_factor: int,
    *,
    start: int = 0,
    first_partition: int = 0,
) -> tuple[tuple[NodeId, ...], ...]:
    """Replica lists, preferred leader first, of partitions `first_partition` and up."""
    if replication_factor < 1:
        raise RequestError(ErrorCode.invalid_replication_factor, "Replication factor must be larger than 0.")
    if replication_factor > len(slots):
        raise RequestError(
            ErrorCode.invalid_replication_factor,
            f"Replication factor: {replication_factor} larger than available brokers: {len(slots)}.",
        )
    ring = _alternate_racks(slots)
    numbers = range(first_partition, first_partition + partition_count)
    return tuple(_replicas(ring, start + number, replication_factor) for number in numbers)


def _alternate_racks(slots: Sequence[Slot]) -> list[Slot]:
    racks: dict[str, list[Slot]] = {}
    for slot in sorted(slots, key=lambda slot: slot.broker_id):
        # A broker without a rack stands for itself.
        racks.setdefault(slot.rack if slot.rack is not None else f"\0{slot.broker_id}", []).append(slot)
    lines = [racks[rack] for rack in sorted(racks)]
    longest = max(len(line) for line in lines)
    return [line[turn] for turn in range(longest) for line in lines if turn < len(line)]


def _replicas(ring: list[Slot], position: int, replication_factor: int) -> tuple[NodeId, ...]:
    size = len(ring)
    leader = ring[position % size]
    shift = (position // size) % max(1, size - 1)
    others = [ring[(position + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)]
    chosen = [leader]
    while len(chosen) < replication_factor:
        uses = {slot.rack: 0 for slot in ring if slot.rack is not None}
        for slot in chosen:
            if slot.rack is not None:
                uses[slot.rack] += 1
        best = min(others, key=lambda slot: uses[slot.rack] if slot.rack is not None else 0)
        others.remove(best)
        chosen.append(best)
    return tuple(slot.broker_id for slot in chosen)
