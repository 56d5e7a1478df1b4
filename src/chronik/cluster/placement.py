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


class _Ring(NamedTuple):
    """The brokers in line, neighbours in different racks."""

    slots: Sequence[Slot]
    racks: Sequence[str]
    """The rack of each broker; a broker without one counts as a rack of its own."""
    sizes: dict[str, int]


def _alternate_racks(slots: Sequence[Slot]) -> _Ring:
    racks: dict[str, list[Slot]] = {}
    for slot in sorted(slots, key=lambda slot: slot.broker_id):
        racks.setdefault(slot.rack if slot.rack is not None else f"\0{slot.broker_id}", []).append(slot)
    lines = sorted(racks.items())
    longest = max(len(line) for _, line in lines)
    ring = [(line[turn], rack) for turn in range(longest) for rack, line in lines if turn < len(line)]
    return _Ring(
        [slot for slot, _ in ring],
        [rack for _, rack in ring],
        {rack: len(line) for rack, line in lines},
    )


def _replicas(ring: _Ring, position: int, replication_factor: int) -> tuple[NodeId, ...]:
    """Take brokers in the partition's order, each from a rack that has the fewest replicas so far. Such a
    broker is usually among the next few, so the rest are not examined."""
    size = len(ring.slots)
    leader = position % size
    shift = (position // size) % max(1, size - 1)
    chosen = [leader]
    uses = {ring.racks[leader]: 1}
    step, uses_searched = 0, 0
    while len(chosen) < replication_factor:
        fewest = _fewest_uses(ring, uses)
        if fewest != uses_searched:
            step, uses_searched = 0, fewest
        # The racks of brokers that were passed over have at least as many uses now.
        while True:
            place = (position + 1 + (shift + step) % (size - 1)) % size
            step += 1
            if uses.get(ring.racks[place], 0) == fewest and place not in chosen:
                break
        chosen.append(place)
        uses[ring.racks[place]] = fewest + 1
    return tuple(ring.slots[place].broker_id for place in chosen)


def _fewest_uses(ring: _Ring, uses: dict[str, int]) -> int:
    """The fewest replicas in any rack that has a broker left."""
    if len(uses) < len(ring.sizes):
        return 0
    return min(count for rack, count in uses.items() if count < ring.sizes[rack])
