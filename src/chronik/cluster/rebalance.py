"""Which replicas move, so that nodes have equal shares or one node has none. Pure.

Replicas of a partition that share a rack go to racks that have none. Then replicas go from the fullest node
to the emptiest until no two differ by more than one: each step is needed, so no plan with fewer moves ends as
even. Then leaders are evened out by changing the order of replica lists, which moves no data; where no single
change helps, a chain of them does. A move never puts a partition's replicas into fewer racks than before.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from chronik.cluster.placement import Slot
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition

__all__ = ["Move", "Placed", "drain", "even_out", "replica_moves"]

CHOICES_MAX: Final = 32
"""How many partitions are compared when several topics are equally good."""


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


def even_out(placed: Sequence[Placed], slots: Sequence[Slot]) -> list[Move]:
    """Spread replicas and preferred leaders evenly over the nodes of `slots`; other nodes are left alone."""
    plan = _Plan(placed, slots)
    for number in range(len(placed)):
        while plan.spread_one(number):
            pass
    while plan.move_one():
        pass
    while plan.shift_leader():
        pass
    return plan.moves()


def drain(
    placed: Sequence[Placed], slots: Sequence[Slot], node: NodeId, *, force: bool = False
) -> list[Move]:
    """Take every replica away from `node`; others of `slots` get them, as many as there were.

    With `force` a replica for which there is no other node is dropped; without, that is refused.
    """
    plan = _Plan(placed, [slot for slot in slots if slot.broker_id != node])
    for number, one in enumerate(placed):
        if node in one.replicas:
            plan.replace(number, node, force=force)
    return plan.moves()


class _Plan:
    """Replica lists that change step by step, and the shares of each node kept beside them."""

    def __init__(self, placed: Sequence[Placed], slots: Sequence[Slot]) -> None:
        self._placed = placed
        self._racks = {slot.broker_id: slot.rack for slot in slots}
        self._replicas = [one.replicas for one in placed]
        self._load = {slot.broker_id: 0 for slot in slots}
        self._held: dict[NodeId, dict[str, dict[int, None]]] = {slot.broker_id: {} for slot in slots}
        """By node and topic, in a fixed order."""
        self._led: dict[NodeId, dict[int, None]] = {slot.broker_id: {} for slot in slots}
        for number, one in enumerate(placed):
            for node in one.replicas:
                self._hold(node, number)
            self._led.setdefault(one.replicas[0], {})[number] = None

    def moves(self) -> list[Move]:
        return [
            Move(one.tp, one.replicas, target)
            for one, target in zip(self._placed, self._replicas, strict=True)
            if target != one.replicas
        ]

    def _hold(self, node: NodeId, number: int) -> None:
        if node in self._held:
            self._load[node] += 1
            self._held[node].setdefault(self._placed[number].tp.topic, {})[number] = None

    def _let_go(self, node: NodeId, number: int) -> None:
        if node in self._held:
            self._load[node] -= 1
            del self._held[node][self._placed[number].tp.topic][number]

    # --- replicas ----------------------------------------------------------------------------------

    def spread_one(self, number: int) -> bool:
        """Take one replica of a partition out of a rack that has several, into one that has none."""
        replicas = self._replicas[number]
        racks = [self._rack(node) for node in replicas]
        crowded = [
            node
            for node, rack in zip(replicas, racks, strict=True)
            if node in self._held and racks.count(rack) > 1
        ]
        takers = [node for node in self._held if self._rack(node) not in racks]
        if not crowded or not takers:
            return False
        # Rather a follower than the leader, from the fullest node to the emptiest.
        giver = max(crowded, key=lambda node: (node != replicas[0], self._load[node], node))
        self._put(number, giver, min(takers, key=lambda node: (self._load[node], node)))
        return True

    def move_one(self) -> bool:
        """Move one replica from a full node to an emptier one; False if nothing can be gained any more."""
        by_load = sorted(self._load, key=lambda node: (self._load[node], node))
        for giver in reversed(by_load):
            for taker in by_load:
                if self._load[giver] - self._load[taker] < 2:
                    break
                number = self._best_to_move(giver, taker)
                if number is not None:
                    self._put(number, giver, taker)
                    return True
        return False

    def _best_to_move(self, giver: NodeId, taker: NodeId) -> int | None:
        """One of the topic of which the giver has most in comparison; a leader if it leads more."""
        given, taken = self._held[giver], self._held[taker]
        leads_more = len(self._led[giver]) > len(self._led[taker])
        topics = sorted(given, key=lambda topic: len(taken.get(topic, ())) - len(given[topic]))
        for topic in topics:
            there = taken.get(topic, {})
            possible = (
                (gain, (self._replicas[number][0] == giver) == leads_more, -number)
                for number in given[topic]
                if number not in there and (gain := self._rack_gain(number, giver, taker)) >= 0
            )
            looked_at = list(itertools.islice(possible, CHOICES_MAX))
            if looked_at:
                return -max(looked_at)[2]
        return None

    def _rack_gain(self, number: int, leaving: NodeId, joining: NodeId) -> int:
        others = [self._rack(node) for node in self._replicas[number] if node != leaving]
        return len({*others, self._rack(joining)}) - len({*others, self._rack(leaving)})

    def _rack(self, node: NodeId) -> str | NodeId:
        """A node without a rack stands for itself."""
        return self._racks.get(node) or node

    def replace(self, number: int, leaving: NodeId, *, force: bool) -> None:
        """Another node takes the replica: one in a rack of its own if there is one, then the emptiest."""
        replicas = self._replicas[number]
        others = [self._rack(node) for node in replicas if node != leaving]
        is_leader = replicas[0] == leaving
        takers = sorted(
            (
                others.count(self._rack(node)),
                self._load[node],
                len(self._led[node]) if is_leader else 0,
                node,
            )
            for node in self._held
            if node not in replicas
        )
        if takers:
            self._put(number, leaving, takers[0][-1])
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
        del self._led[self._replicas[number][0]][number]
        self._led[replicas[0]][number] = None
        self._replicas[number] = replicas

    # --- leaders -----------------------------------------------------------------------------------

    def shift_leader(self) -> bool:
        """Take one leadership from a node to one with at least two fewer, over others if need be."""
        for giver in sorted(self._held, key=lambda node: (-len(self._led[node]), node)):
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
