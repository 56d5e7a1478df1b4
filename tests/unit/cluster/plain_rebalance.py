"""`chronik.cluster.rebalance.even_out` written plainly: every step looks at everything anew.

It says what the plan should be. Its cost grows with the square of the number of partitions.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from chronik.cluster.placement import Slot
from chronik.cluster.rebalance import CHOICES_MAX, Move, Placed
from chronik.model import NodeId


def plain_even_out(placed: Sequence[Placed], slots: Sequence[Slot]) -> list[Move]:
    """Spread replicas and preferred leaders evenly over the nodes of `slots`; other nodes are left alone."""
    plan = Plan(placed, slots)
    for number in range(len(placed)):
        while plan.spread_one(number):
            pass
    while plan.move_one():
        pass
    while plan.shift_leader():
        pass
    return plan.moves()


class Plan:
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
