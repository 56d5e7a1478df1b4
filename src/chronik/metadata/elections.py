"""Who leads a partition when brokers go and come. Pure.

Leaders come out of the ISR, alive, in the order of the replica list (T07). Each function takes a partition
and the broker something happened to, and gives the partition as it is afterwards, or None if it stays.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from chronik.metadata.values import PartitionRegistration, Topic
from chronik.model import NO_LEADER, NodeId

__all__ = ["IsAlive", "after_restart", "elect", "led_again", "without"]

IsAlive = Callable[[NodeId], bool]


def elect(
    topic: Topic, partition: PartitionRegistration, isr: tuple[NodeId, ...], is_alive: IsAlive
) -> NodeId:
    """The node that should lead: a live member of the ISR, the preferred replica first; NO_LEADER if none is
    alive."""
    for replica in partition.replicas:
        if replica in isr and is_alive(replica):
            return replica
    if topic.configs.get("unclean.leader.election.enable", "").strip().lower() == "true":
        for replica in partition.replicas:
            if is_alive(replica):
                return replica
    return NO_LEADER


def without(
    topic: Topic, old: PartitionRegistration, gone: NodeId, is_alive: IsAlive
) -> PartitionRegistration | None:
    """Broker `gone` was fenced or removed. It stops leading, and leaves the ISR unless it is the last one."""
    isr = tuple(member for member in old.isr if member != gone) or old.isr
    leader = old.leader
    if leader in (gone, NO_LEADER):
        leader = elect(topic, old, isr, is_alive)
        if leader != NO_LEADER and leader not in isr:
            isr = (leader,)
    if (leader, isr) == (old.leader, old.isr):
        return None
    return _successor(old, leader, isr)


def after_restart(
    topic: Topic, old: PartitionRegistration, back: NodeId, is_alive: IsAlive
) -> PartitionRegistration | None:
    """Broker `back` registered with a new incarnation. It may have lost records that it had not synced."""
    if old.leader == back:
        others = tuple(member for member in old.isr if member != back)
        leader = elect(topic, old, others, is_alive) if others else NO_LEADER
        if leader == NO_LEADER:
            return _successor(old, back if is_alive(back) else NO_LEADER, old.isr)
        return _successor(old, leader, others)
    if back in old.isr and len(old.isr) > 1:
        # What it acknowledged is on its disk, but it has to show that it still has it.
        return _successor(old, old.leader, tuple(member for member in old.isr if member != back))
    return led_again(topic, old, back, is_alive)


def led_again(
    topic: Topic, old: PartitionRegistration, back: NodeId, is_alive: IsAlive
) -> PartitionRegistration | None:
    """Broker `back` is alive again: elect a leader if the partition has none."""
    if old.leader != NO_LEADER or not is_alive(back):
        return None
    leader = elect(topic, old, old.isr, is_alive)
    if leader == NO_LEADER:
        return None
    return _successor(old, leader, old.isr if leader in old.isr else (leader,))


def _successor(old: PartitionRegistration, leader: NodeId, isr: tuple[NodeId, ...]) -> PartitionRegistration:
    """The partition with this leader and ISR. A new leader, or a new incarnation of the old one, gets a new
    leader epoch; a change of the ISR alone does not."""
    unchanged = leader == old.leader and isr != old.isr
    return msgspec.structs.replace(
        old,
        leader=leader,
        isr=isr,
        leader_epoch=old.leader_epoch + (not unchanged),
        partition_epoch=old.partition_epoch + 1,
    )
