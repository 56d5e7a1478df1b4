"""Moving a partition's replicas to another set of brokers. Pure.

While it moves, a partition has the replicas of both sets, those of the target first: the leader feeds the
added ones, and nobody leaves before they are in sync. So a move never lowers the number of copies, and
giving it up in between leaves the partition as it was.
"""

from __future__ import annotations

import msgspec

from chronik.metadata.elections import IsAlive
from chronik.metadata.values import PartitionRegistration
from chronik.model import NO_LEADER, NodeId

__all__ = ["begin", "complete", "is_moving", "original_of", "target_of", "without_replica"]


def is_moving(partition: PartitionRegistration) -> bool:
    return bool(partition.adding or partition.removing)


def target_of(partition: PartitionRegistration) -> tuple[NodeId, ...]:
    """Where the replicas will be when nothing moves any more."""
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


def original_of(partition: PartitionRegistration) -> tuple[NodeId, ...]:
    """Where the replicas would be if the move were given up."""
    return tuple(replica for replica in partition.replicas if replica not in partition.adding)


def begin(
    old: PartitionRegistration, target: tuple[NodeId, ...], is_alive: IsAlive
) -> PartitionRegistration | None:
    """The partition on its way to `target`; a move that is under way is replaced by this one.

    What that one was adding and this one does not want goes at once. None if nobody would be in sync then.
    """
    original = original_of(old)
    dropped = {replica for replica in old.adding if replica not in target}
    isr = tuple(member for member in old.isr if member not in dropped)
    if not isr:
        return None
    staying = tuple(replica for replica in original if replica not in target)
    replicas = (*target, *staying)
    leader = _first(replicas, isr, is_alive) if old.leader in dropped else old.leader
    return msgspec.structs.replace(
        old,
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=old.leader_epoch + (leader != old.leader),
        partition_epoch=old.partition_epoch + 1,
        adding=tuple(replica for replica in target if replica not in original),
        removing=staying,
    )


def complete(partition: PartitionRegistration, is_alive: IsAlive) -> PartitionRegistration:
    """The partition with its move ended, if it can end; else the partition as it is.

    Every added replica must be in sync, and so must every other one of the target that is alive: then as many
    copies stay as there were. A leader that leaves hands over to the first of the target that is in sync.
    """
    if not is_moving(partition):
        return partition
    target = target_of(partition)
    isr = tuple(replica for replica in target if replica in partition.isr)
    awaited = [r for r in target if r not in isr and (r in partition.adding or is_alive(r))]
    leader = partition.leader
    if leader != NO_LEADER and leader not in target:
        leader = _first(target, isr, is_alive)
        if leader == NO_LEADER:
            return partition
    if awaited or not isr:
        return partition
    return msgspec.structs.replace(
        partition,
        replicas=target,
        isr=isr,
        leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        adding=(),
        removing=(),
    )


def without_replica(
    old: PartitionRegistration, gone: NodeId, is_alive: IsAlive
) -> PartitionRegistration | None:
    """The partition with one replica fewer; None if no other one is in sync."""
    isr = tuple(member for member in old.isr if member != gone)
    if not isr:
        return None
    replicas = tuple(replica for replica in old.replicas if replica != gone)
    leader = _first(replicas, isr, is_alive) if old.leader in (gone, NO_LEADER) else old.leader
    return msgspec.structs.replace(
        old,
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=old.leader_epoch + (leader != old.leader),
        partition_epoch=old.partition_epoch + 1,
        adding=tuple(replica for replica in old.adding if replica != gone),
        removing=tuple(replica for replica in old.removing if replica != gone),
    )


def _first(replicas: tuple[NodeId, ...], isr: tuple[NodeId, ...], is_alive: IsAlive) -> NodeId:
    return next((replica for replica in replicas if replica in isr and is_alive(replica)), NO_LEADER)
