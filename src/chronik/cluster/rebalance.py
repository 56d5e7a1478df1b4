"""Which replicas move, so that nodes have equal shares or one node has none. Pure.

Replicas of a partition that share a rack go to racks that have none. Then replicas go from the fullest node
to the emptiest until no two differ by more than one: each step is needed, so no plan with fewer moves ends as
even. Then leaders are evened out by changing the order of replica lists, which moves no data; where no single
change helps, a chain of them does. A move never puts a partition's replicas into fewer racks than before.

A plan for many partitions takes seconds, so it can be made in steps, between which its caller does other
work. What a step looks at does not grow with the number of partitions.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple, TypeAlias

from chronik.cluster.placement import Slot
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition

__all__ = [
    "Move",
    "Placed",
    "Steps",
    "drain",
    "drain_steps",
    "even_out",
    "even_out_steps",
    "plan_moves",
    "plan_moves_steps",
    "replica_moves",
]

CHOICES_MAX: Final = 32
"""How many partitions are compared when several topics are equally good."""
PARTITIONS_A_STEP: Final = 8
"""Partitions that a step takes in where each costs little; about the cost of one move."""


class Placed(NamedTuple):
    """A partition and where its replicas are, preferred leader first."""

    tp: TopicPartition
    replicas: tuple[NodeId, ...]


class Move(NamedTuple):
    tp: TopicPartition
    before: tuple[NodeId, ...]
    target: tuple[NodeId, ...]

    @property
    def added(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self.target if node not in self.before)

    @property
    def moves_leader(self) -> bool:
        return self.target[0] != self.before[0]


Steps: TypeAlias = Generator[None, None, list[Move]]
"""A plan in the making: each step takes a fraction of a millisecond, and the last one returns the moves."""

_Rack: TypeAlias = str | NodeId


def even_out(placed: Sequence[Placed], slots: Sequence[Slot]) -> list[Move]:
    """Spread replicas and preferred leaders evenly over the nodes of `slots`; other nodes are left alone."""
    return _at_once(even_out_steps(placed, slots))


def drain(
    placed: Sequence[Placed], slots: Sequence[Slot], node: NodeId, *, force: bool = False
) -> list[Move]:
    """Take every replica away from `node`; others of `slots` get them, as many as there were.

    With `force` a replica for which there is no other node is dropped; without, that is refused.
    """
    return _at_once(drain_steps(placed, slots, node, force=force))


def plan_moves(
    before: Mapping[TopicPartition, tuple[NodeId, ...]],
    slots: Sequence[Slot],
    drained: Collection[NodeId] = (),
) -> list[Move]:
    """Take every replica away from the drained nodes, one node after the other; without any, even out.

    `slots` are the nodes that may get something: the drained ones are not among them.
    """
    return _at_once(plan_moves_steps(before, slots, drained))


def plan_moves_steps(
    before: Mapping[TopicPartition, tuple[NodeId, ...]],
    slots: Sequence[Slot],
    drained: Collection[NodeId] = (),
) -> Steps:
    """`plan_moves`, in steps. A node that is named twice is drained once."""
    after = dict(before)
    for node in dict.fromkeys(drained):
        moves = yield from drain_steps([Placed(*one) for one in after.items()], slots, node)
        after |= {move.tp: move.target for move in moves}
    if not drained:
        moves = yield from even_out_steps([Placed(*one) for one in after.items()], slots)
        after |= {move.tp: move.target for move in moves}
    return [Move(tp, replicas, after[tp]) for tp, replicas in before.items() if after[tp] != replicas]


def even_out_steps(placed: Sequence[Placed], slots: Sequence[Slot]) -> Steps:
    """`even_out`, in steps."""
    plan = _ReplicaLists(slots)
    for number, one in enumerate(placed):
        plan.take_in(one)
        if number % PARTITIONS_A_STEP == 0:
            yield
    for number in range(len(placed)):
        while plan.spread_one(number):
            pass
        if number % PARTITIONS_A_STEP == 0:
            yield
    while plan.move_one():
        yield
    while plan.shift_leader():
        yield
    return plan.moves()


def drain_steps(
    placed: Sequence[Placed], slots: Sequence[Slot], node: NodeId, *, force: bool = False
) -> Steps:
    """`drain`, in steps."""
    plan = _ReplicaLists([slot for slot in slots if slot.broker_id != node])
    for number, one in enumerate(placed):
        plan.take_in(one)
        if number % PARTITIONS_A_STEP == 0:
            yield
    for number, one in enumerate(placed):
        if node in one.replicas:
            plan.replace(number, node, force=force)
            yield
    return plan.moves()


def _at_once(steps: Steps) -> list[Move]:
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            moves: list[Move] = finished.value
            return moves


class _Obstacles:
    """How many partitions of a node, all or of one topic, another node cannot take from it.

    A partition that has no other replica in the giver's rack cannot go to any rack where it has one: it would
    end in fewer racks. Else it can go anywhere but to a node that has it. The counts tell whether anything
    can move between two nodes without a look at their partitions.
    """

    def __init__(self) -> None:
        self._by_rack: defaultdict[tuple[NodeId, str | None], defaultdict[_Rack, int]]
        self._by_rack = defaultdict(lambda: defaultdict(int))
        self._by_node: defaultdict[tuple[NodeId, str | None], defaultdict[NodeId, int]]
        self._by_node = defaultdict(lambda: defaultdict(int))

    def add(self, topic: str, replicas: Sequence[NodeId], racks: Sequence[_Rack], count: int = 1) -> None:
        """Note a partition; with -1 as `count`, forget it."""
        for place, giver in enumerate(replicas):
            others = {*racks[:place], *racks[place + 1 :]}
            for key in ((giver, topic), (giver, None)):
                if racks[place] not in others:
                    by_rack = self._by_rack[key]
                    for rack in others:
                        by_rack[rack] += count
                else:
                    by_node = self._by_node[key]
                    for node in replicas:
                        by_node[node] += count

    def between(self, giver: NodeId, topic: str | None, taker: NodeId, rack: _Rack) -> int:
        key = giver, topic
        return self._by_rack[key][rack] + self._by_node[key][taker]


class _ReplicaLists:
    """Replica lists that change step by step, and the shares of each node kept beside them."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._placed: list[Placed] = []
        self._racks: dict[NodeId, _Rack] = {slot.broker_id: slot.rack or slot.broker_id for slot in slots}
        self._replicas: list[tuple[NodeId, ...]] = []
        self._load = {slot.broker_id: 0 for slot in slots}
        self._by_load = sorted((0, node) for node in self._load)
        """The same, emptiest first."""
        self._held: dict[NodeId, dict[str, dict[int, None]]] = {slot.broker_id: {} for slot in slots}
        """The partitions that each node has a replica of, by topic. The dicts serve as sets with a fixed
        order."""
        self._led: dict[NodeId, dict[int, None]] = {slot.broker_id: {} for slot in slots}
        self._obstacles = _Obstacles()
        self._taken = dict.fromkeys(self._held, 0)
        self._given = dict.fromkeys(self._held, 0)
        """How often each node has received or lost a replica; a topic queue made before that is out of
        date."""
        self._topics: dict[tuple[NodeId, NodeId], tuple[int, int, list[tuple[int, int, str]]]] = {}
        """For each giver and taker a heap of topics. The first one is the topic of which the giver has most,
        compared with the taker."""

    def take_in(self, one: Placed) -> None:
        number = len(self._placed)
        self._placed.append(one)
        self._replicas.append(one.replicas)
        for node in one.replicas:
            self._hold(node, number)
        self._led.setdefault(one.replicas[0], {})[number] = None
        self._note(number, 1)

    def moves(self) -> list[Move]:
        return [
            Move(one.tp, one.replicas, target)
            for one, target in zip(self._placed, self._replicas, strict=True)
            if target != one.replicas
        ]

    def _hold(self, node: NodeId, number: int) -> None:
        if node in self._held:
            self._change_load(node, 1)
            self._taken[node] += 1
            self._held[node].setdefault(self._placed[number].tp.topic, {})[number] = None

    def _let_go(self, node: NodeId, number: int) -> None:
        if node in self._held:
            self._change_load(node, -1)
            self._given[node] += 1
            del self._held[node][self._placed[number].tp.topic][number]

    def _change_load(self, node: NodeId, difference: int) -> None:
        load = self._load[node]
        del self._by_load[bisect_left(self._by_load, (load, node))]
        self._load[node] = load + difference
        insort(self._by_load, (load + difference, node))

    def _note(self, number: int, count: int) -> None:
        replicas = self._replicas[number]
        racks = [self._rack(node) for node in replicas]
        self._obstacles.add(self._placed[number].tp.topic, replicas, racks, count)

    # --- replicas ----------------------------------------------------------------------------------

    def spread_one(self, number: int) -> bool:
        """Take one replica of a partition out of a rack that has several, into one that has none."""
        replicas = self._replicas[number]
        racks = [self._rack(node) for node in replicas]
        if len(set(racks)) == len(racks):
            return False
        crowded = [
            node
            for node, rack in zip(replicas, racks, strict=True)
            if node in self._held and racks.count(rack) > 1
        ]
        takers = [node for node in self._held if self._rack(node) not in racks]
        if not crowded or not takers:
            return False
        # Prefer a follower to the leader, the fullest node as giver and the emptiest as taker.
        giver = max(crowded, key=lambda node: (node != replicas[0], self._load[node], node))
        self._put(number, giver, min(takers, key=lambda node: (self._load[node], node)))
        return True

    def move_one(self) -> bool:
        """Move one replica from a full node to an emptier one; False if nothing can be gained any more."""
        for given, giver in reversed(self._by_load):
            for taken, taker in self._by_load:
                if given - taken < 2:
                    break
                if self._obstacles.between(giver, None, taker, self._rack(taker)) == given:
                    continue
                number = self._best_to_move(giver, taker)
                if number is not None:
                    self._put(number, giver, taker)
                    return True
        return False

    def _best_to_move(self, giver: NodeId, taker: NodeId) -> int | None:
        """Choose a partition of the topic of which the giver has most, compared with the taker. If it leads
        more than the taker, choose one that it leads."""
        given, taken = self._held[giver], self._held[taker]
        topics = self._topics_between(giver, taker)
        unmovable = []
        best = None
        while topics and best is None:
            before, place, topic = topics[0]
            now = len(taken.get(topic, ())) - len(given[topic])
            if not given[topic]:
                heappop(topics)
            elif now != before:
                heapreplace(topics, (now, place, topic))
            else:
                best = self._best_of(topic, giver, taker)
                if best is None:
                    unmovable.append(heappop(topics))
        for one in unmovable:
            heappush(topics, one)
        return best

    def _topics_between(self, giver: NodeId, taker: NodeId) -> list[tuple[int, int, str]]:
        """The heap of topics between two nodes. A topic's key may be too low, since both have moved replicas
        since."""
        taken_before, given_before, topics = self._topics.get((giver, taker), (-1, -1, []))
        if (taken_before, given_before) != (self._taken[giver], self._given[taker]):
            there = self._held[taker]
            topics = [
                (len(there.get(topic, ())) - len(numbers), place, topic)
                for place, (topic, numbers) in enumerate(self._held[giver].items())
            ]
            heapify(topics)
            self._topics[giver, taker] = self._taken[giver], self._given[taker], topics
        return topics

    def _best_of(self, topic: str, giver: NodeId, taker: NodeId) -> int | None:
        numbers = self._held[giver][topic]
        rack_left, rack_joined = self._rack(giver), self._rack(taker)
        if self._obstacles.between(giver, topic, taker, rack_joined) == len(numbers):
            return None
        leads_more = len(self._led[giver]) > len(self._led[taker])
        there = self._held[taker].get(topic, {})
        possible = (
            (gain, (self._replicas[number][0] == giver) == leads_more, -number)
            for number in numbers
            if number not in there and (gain := self._rack_gain(number, giver, rack_left, rack_joined)) >= 0
        )
        looked_at = list(itertools.islice(possible, CHOICES_MAX))
        return -max(looked_at)[2] if looked_at else None

    def _rack_gain(self, number: int, leaving: NodeId, rack_left: _Rack, rack_joined: _Rack) -> int:
        """In how many more racks the partition is when `leaving` gives it to a node of `rack_joined`."""
        racks = self._racks
        others = [racks.get(node, node) for node in self._replicas[number] if node != leaving]
        return (rack_joined not in others) - (rack_left not in others)

    def _rack(self, node: NodeId) -> _Rack:
        """A node without a rack counts as a rack of its own."""
        return self._racks.get(node, node)

    def replace(self, number: int, leaving: NodeId, *, force: bool) -> None:
        """Another node takes the replica: one in a rack of its own if there is one, then the emptiest."""
        replicas = self._replicas[number]
        others = [self._rack(node) for node in replicas if node != leaving]
        is_leader = replicas[0] == leaving
        takers = (
            (
                others.count(self._rack(node)),
                self._load[node],
                len(self._led[node]) if is_leader else 0,
                node,
            )
            for node in self._held
            if node not in replicas
        )
        taker = min(takers, default=None)
        if taker is not None:
            self._put(number, leaving, taker[-1])
        elif not force:
            raise RequestError(
                ErrorCode.invalid_replication_factor,
                f"{self._placed[number].tp} has {len(replicas)} replicas, and without node {leaving} "
                f"there are only {len(self._held)} nodes.",
            )
        elif others:
            self._let_go(leaving, number)
            self._set(number, tuple(node for node in replicas if node != leaving))

    def _put(self, number: int, leaving: NodeId, joining: NodeId) -> None:
        self._let_go(leaving, number)
        self._hold(joining, number)
        self._set(number, tuple(joining if node == leaving else node for node in self._replicas[number]))

    def _set(self, number: int, replicas: tuple[NodeId, ...]) -> None:
        self._note(number, -1)
        del self._led[self._replicas[number][0]][number]
        self._led[replicas[0]][number] = None
        self._replicas[number] = replicas
        self._note(number, 1)

    # --- leaders -----------------------------------------------------------------------------------

    def shift_leader(self) -> bool:
        """Take one leadership from a node to one with at least two fewer, over others if need be."""
        fewest = min((len(self._led[node]) for node in self._held), default=0)
        for giver in sorted(self._held, key=lambda node: (-len(self._led[node]), node)):
            if len(self._led[giver]) - 2 < fewest:
                break
            chain = self._chain_from(giver)
            if chain:
                for number, leader in chain:
                    self._lead(number, leader)
                return True
        return False

    def _chain_from(self, giver: NodeId) -> list[tuple[int, NodeId]]:
        """The fewest leader changes that leave the giver with one fewer; empty if there are none."""
        enough = len(self._led[giver]) - 2
        came_from: dict[NodeId, tuple[NodeId, int] | None] = {giver: None}
        queue = deque([giver])
        while queue and len(came_from) < len(self._held):
            node = queue.popleft()
            for number in self._led[node]:
                for other in self._replicas[number][1:]:
                    if other in self._held and other not in came_from:
                        came_from[other] = (node, number)
                        queue.append(other)
                        if len(self._led[other]) <= enough:
                            return _back(came_from, other)
        return []

    def _lead(self, number: int, leader: NodeId) -> None:
        replicas = list(self._replicas[number])
        place = replicas.index(leader)
        replicas[0], replicas[place] = leader, replicas[0]
        self._set(number, tuple(replicas))


def _back(came_from: dict[NodeId, tuple[NodeId, int] | None], end: NodeId) -> list[tuple[int, NodeId]]:
    chain: list[tuple[int, NodeId]] = []
    node = end
    while (step := came_from[node]) is not None:
        chain.append((step[1], node))
        node = step[0]
    return chain


def replica_moves(moves: Iterable[Move]) -> int:
    return sum(len(move.added) for move in moves)
