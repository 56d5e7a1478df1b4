"""Which leaders, and which replicas, should move so that nodes carry equal loads. Pure.

A node's load is the bytes a second that it takes in and gives out: for a partition that it leads, what
producers write, what clients fetch and a copy for each follower; for one that it follows, what is written.
Leaders go first, to replicas that are in sync, since that moves no data. Each step takes load from a node
that has clearly too much and gives it to one that has clearly less even afterwards. So no step makes the
largest load larger, the sum of the squares of all loads falls by a fixed amount at least, and plans come to
an end. A move never puts a partition's replicas into fewer racks than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from chronik.cluster.placement import Slot
from chronik.model import NodeId, TopicPartition

__all__ = ["LoadMove", "PlanLimits", "Traffic", "node_loads", "plan_moves"]

TOLERANCE: Final = 0.3
"""Nothing moves until a node carries this much more than the mean."""
SETTLED: Final = 0.1
"""Then nodes give until none carries this much more: the next start is far away."""
GAIN_SHARE: Final = 0.1
"""A step must bring two nodes closer by this share of the mean on both sides; noise would undo less."""


class Traffic(NamedTuple):
    """A partition and its bytes a second."""

    tp: TopicPartition
    replicas: tuple[NodeId, ...]
    """The leader first."""
    isr: tuple[NodeId, ...]
    taken: int
    given: int
    may_move: bool = True

    @property
    def leader_load(self) -> int:
        return self.taken * len(self.replicas) + self.given

    @property
    def follower_load(self) -> int:
        return self.taken


class PlanLimits(NamedTuple):
    difference_min: int
    """Loads that differ from the mean by fewer bytes a second than this count as equal."""
    leaders_max: int
    replicas_max: int
    """0: nothing moves that copies data."""


class LoadMove(NamedTuple):
    tp: TopicPartition
    target: tuple[NodeId, ...]
    """The new leader, or the old one, first."""
    copies_data: bool


class _Step(NamedTuple):
    gain: int
    """The fuller of the two nodes is relieved by at least this much."""
    load: int
    taker_load: int
    """Before the step."""
    taker: NodeId
    number: int
    copies_data: bool


def node_loads(
    traffic: Sequence[Traffic], others: Mapping[NodeId, int], slots: Sequence[Slot]
) -> dict[NodeId, int]:
    """`others` is what each node carries besides `traffic`."""
    loads = {slot.broker_id: others.get(slot.broker_id, 0) for slot in slots}
    for one in traffic:
        for place, node in enumerate(one.replicas):
            if node in loads:
                loads[node] += one.follower_load if place else one.leader_load
    return loads


def plan_moves(
    traffic: Sequence[Traffic], others: Mapping[NodeId, int], slots: Sequence[Slot], limits: PlanLimits
) -> list[LoadMove]:
    """What should move now; each partition at most once. `slots` are the nodes that take part."""
    plan = _LoadPlanner(traffic, others, slots, limits)
    if plan.is_uneven:
        while plan.step():
            pass
    return plan.moves


class _LoadPlanner:
    def __init__(
        self,
        traffic: Sequence[Traffic],
        others: Mapping[NodeId, int],
        slots: Sequence[Slot],
        limits: PlanLimits,
    ) -> None:
        self.moves: list[LoadMove] = []
        self._traffic = [one for one in traffic if one.may_move]
        self._loads = node_loads(traffic, others, slots)
        self._racks = {slot.broker_id: slot.rack or slot.broker_id for slot in slots}
        self._leaders_left, self._replicas_left = limits.leaders_max, limits.replicas_max
        mean = sum(self._loads.values()) / max(len(self._loads), 1)
        self.is_uneven = max(self._loads.values(), default=0) > mean + max(
            TOLERANCE * mean, limits.difference_min
        )
        self._bearable = mean + max(SETTLED * mean, limits.difference_min)
        self._gain_min = max(GAIN_SHARE * mean, limits.difference_min * GAIN_SHARE, 1)

    def step(self) -> bool:
        """Move something away from the fullest node that can give; False if none can, or none has to."""
        for giver, load in sorted(self._loads.items(), key=lambda one: (-one[1], one[0])):
            if load <= self._bearable:
                return False
            best = max(self._leader_steps(giver), default=None, key=_preference)
            if best is None:
                best = max(self._replica_steps(giver), default=None, key=_preference)
            if best is not None:
                self._take(giver, best)
                return True
        return False

    def _leader_steps(self, giver: NodeId) -> Iterator[_Step]:
        if not self._leaders_left:
            return
        for number, one in enumerate(self._traffic):
            if one.replicas[0] == giver:
                for taker in one.replicas[1:]:
                    if taker in self._loads and taker in one.isr:
                        yield from self._worth(
                            giver, taker, number, one.leader_load - one.follower_load, copies_data=False
                        )

    def _replica_steps(self, giver: NodeId) -> Iterator[_Step]:
        if not self._replicas_left:
            return
        for number, one in enumerate(self._traffic):
            if giver in one.replicas:
                load = one.leader_load if one.replicas[0] == giver else one.follower_load
                for taker in self._loads:
                    if taker not in one.replicas and self._keeps_racks(one, giver, taker):
                        yield from self._worth(giver, taker, number, load, copies_data=True)

    def _worth(
        self, giver: NodeId, taker: NodeId, number: int, load: int, *, copies_data: bool
    ) -> Iterator[_Step]:
        """The step, if it leaves both nodes clearly below what the giver has now."""
        gain = min(load, self._loads[giver] - self._loads[taker] - load)
        if gain >= self._gain_min:
            yield _Step(gain, load, self._loads[taker], taker, number, copies_data)

    def _keeps_racks(self, one: Traffic, giver: NodeId, taker: NodeId) -> bool:
        racks = self._racks
        others = {racks.get(node, node) for node in one.replicas if node != giver}
        return racks[taker] not in others or racks.get(giver, giver) in others

    def _take(self, giver: NodeId, step: _Step) -> None:
        one = self._traffic.pop(step.number)
        self._loads[giver] -= step.load
        self._loads[step.taker] += step.load
        if step.copies_data:
            self._replicas_left -= 1
            target = tuple(step.taker if node == giver else node for node in one.replicas)
        else:
            self._leaders_left -= 1
            target = (step.taker, *(node for node in one.replicas if node != step.taker))
        self.moves.append(LoadMove(one.tp, target, step.copies_data))


def _preference(step: _Step) -> tuple[int, int, int, int]:
    """The largest gain, then the emptiest taker; between equal ones always the same."""
    return step.gain, -step.taker_load, -step.taker, -step.number
