"""`chronik.cluster.placement.place` written plainly: every replica is chosen among all brokers."""

from __future__ import annotations

from collections.abc import Sequence

from chronik.cluster.placement import Slot
from chronik.model import NodeId


def plain_place(
    slots: Sequence[Slot], partition_count: int, replication_factor: int, *, start: int = 0
) -> tuple[tuple[NodeId, ...], ...]:
    ring = _alternate_racks(slots)
    return tuple(_replicas(ring, start + number, replication_factor) for number in range(partition_count))


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
