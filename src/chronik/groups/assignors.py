"""Server-side assignors of KIP-848: who should get which partition.

Both are functions of their arguments alone, so that every coordinator comes to the same result.
`uniform` spreads partitions evenly and leaves them where they are as far as balance allows;
`range` gives each member a contiguous run of every topic, so that topics with equal partition counts
are read side by side by the same member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias
from uuid import UUID

Partition: TypeAlias = tuple[UUID, int]
Partitions: TypeAlias = frozenset[Partition]
Subscriptions: TypeAlias = Mapping[str, frozenset[UUID]]
"""Member id to the topics it wants."""
Assignment: TypeAlias = dict[str, Partitions]
Assignor: TypeAlias = Callable[[Subscriptions, Mapping[UUID, int], Mapping[str, Partitions]], Assignment]
"""(subscriptions, partitions per topic, present target) to the new target."""


def assign_uniform(
    subscriptions: Subscriptions, topics: Mapping[UUID, int], current: Mapping[str, Partitions]
) -> Assignment:
    if not subscriptions:
        return {}
    wanted = next(iter(subscriptions.values()))
    if all(subscription == wanted for subscription in subscriptions.values()):
        return _uniform_same(sorted(subscriptions), _partitions(wanted, topics), current)
    return _uniform_mixed(subscriptions, topics, current)


def _partitions(wanted: frozenset[UUID], topics: Mapping[UUID, int]) -> list[Partition]:
    return [(topic, index) for topic in sorted(wanted & topics.keys()) for index in range(topics[topic])]


def _uniform_same(
    members: list[str], partitions: list[Partition], current: Mapping[str, Partitions]
) -> Assignment:
    """All want the same topics: `base` each, one more for some, first for those that have it already."""
    base, extra = divmod(len(partitions), len(members))
    existing = set(partitions)
    kept = {member: sorted(current.get(member, frozenset()) & existing) for member in members}
    limit = {}
    for member in sorted(members, key=lambda name: (-len(kept[name]), name)):
        limit[member] = base + (1 if extra > 0 else 0)
        extra -= 1
    taken: set[Partition] = set()
    for member in members:
        mine = [partition for partition in kept[member] if partition not in taken][: limit[member]]
        kept[member] = mine
        taken.update(mine)
    free = iter([partition for partition in partitions if partition not in taken])
    for member in members:
        kept[member] += [next(free) for _ in range(limit[member] - len(kept[member]))]
    return {member: frozenset(mine) for member, mine in kept.items()}


def _uniform_mixed(
    subscriptions: Subscriptions, topics: Mapping[UUID, int], current: Mapping[str, Partitions]
) -> Assignment:
    """Subscriptions differ: keep, give the rest to the least loaded, move while that evens things out."""
    wanting = {
        topic: sorted(member for member, wanted in subscriptions.items() if topic in wanted)
        for topic in topics
    }
    owner: dict[Partition, str] = {}
    load = dict.fromkeys(sorted(subscriptions), 0)
    for member in load:
        for partition in sorted(current.get(member, frozenset())):
            topic, index = partition
            if partition not in owner and topic in subscriptions[member] and index < topics.get(topic, 0):
                owner[partition] = member
                load[member] += 1
    by_choice = sorted((len(wanting[topic]), topic) for topic in topics if wanting[topic])
    everything = [(topic, index) for _, topic in by_choice for index in range(topics[topic])]
    for partition in everything:
        if partition not in owner:
            member = min(wanting[partition[0]], key=load.__getitem__)
            owner[partition] = member
            load[member] += 1
    moved = True
    while moved:  # every move lowers the sum of squared loads, so this ends
        moved = False
        for partition in everything:
            here = owner[partition]
            there = min(wanting[partition[0]], key=load.__getitem__)
            if load[here] - load[there] > 1:
                owner[partition] = there
                load[here] -= 1
                load[there] += 1
                moved = True
    result: dict[str, set[Partition]] = {member: set() for member in subscriptions}
    for partition, member in owner.items():
        result[member].add(partition)
    return {member: frozenset(mine) for member, mine in result.items()}


def assign_range(
    subscriptions: Subscriptions, topics: Mapping[UUID, int], current: Mapping[str, Partitions]
) -> Assignment:
    result: dict[str, set[Partition]] = {member: set() for member in subscriptions}
    for topic, count in topics.items():
        members = sorted(member for member, wanted in subscriptions.items() if topic in wanted)
        if not members:
            continue
        base, extra = divmod(count, len(members))
        start = 0
        for position, member in enumerate(members):
            end = start + base + (1 if position < extra else 0)
            result[member].update((topic, index) for index in range(start, end))
            start = end
    return {member: frozenset(mine) for member, mine in result.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
