"""Partitions in the cluster state: what a new or changed one may look like, and the events that tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from chronik.metadata import commands as c
from chronik.metadata import events as e
from chronik.metadata.values import Broker, PartitionRegistration, Refusal, Topic
from chronik.model import NO_LEADER, ErrorCode, NodeId, TopicPartition

Brokers: TypeAlias = Mapping[NodeId, Broker]


def is_alive(brokers: Brokers, broker_id: NodeId) -> bool:
    broker = brokers.get(broker_id)
    return broker is not None and not broker.fenced


def new_partitions(
    first: int, replica_lists: tuple[tuple[NodeId, ...], ...], brokers: Brokers
) -> tuple[PartitionRegistration, ...]:
    partitions = []
    for number, replicas in enumerate(replica_lists, first):
        check_replicas(replicas, brokers)
        isr = tuple(replica for replica in replicas if is_alive(brokers, replica))
        if not isr:
            raise Refusal(
                ErrorCode.invalid_replica_assignment, f"No broker of {list(replicas)} is alive to lead."
            )
        partitions.append(PartitionRegistration(partition=number, replicas=replicas, isr=isr, leader=isr[0]))
    return tuple(partitions)


def check_replicas(replicas: tuple[NodeId, ...], brokers: Brokers) -> None:
    if not replicas or len(set(replicas)) != len(replicas):
        raise Refusal(ErrorCode.invalid_replica_assignment, f"{list(replicas)} is not a list of replicas.")
    unknown = [replica for replica in replicas if replica not in brokers]
    if unknown:
        raise Refusal(ErrorCode.invalid_replica_assignment, f"Brokers {unknown} are not registered.")


def changed_partition(
    old: PartitionRegistration, command: c.ChangePartition, brokers: Brokers
) -> PartitionRegistration:
    leader = command.leader if command.leader is not None else old.leader
    isr = command.isr if command.isr is not None else old.isr
    if command.unclean and leader not in isr:
        isr = (leader,)
    _check_isr(old, isr, brokers)
    if leader != NO_LEADER and (
        leader not in isr or (leader != old.leader and not is_alive(brokers, leader))
    ):
        raise Refusal(ErrorCode.eligible_leaders_not_available, f"Broker {leader} cannot lead now.")
    return msgspec.structs.replace(
        old,
        isr=isr,
        leader=leader,
        leader_epoch=old.leader_epoch + (leader != old.leader or command.bump_leader_epoch),
        partition_epoch=old.partition_epoch + 1,
    )


def _check_isr(old: PartitionRegistration, isr: tuple[NodeId, ...], brokers: Brokers) -> None:
    if not isr or len(set(isr)) != len(isr) or not set(isr) <= set(old.replicas):
        raise Refusal(ErrorCode.invalid_request, f"{list(isr)} is no ISR of {list(old.replicas)}.")
    fenced = [member for member in isr if member not in old.isr and not is_alive(brokers, member)]
    if fenced:
        raise Refusal(ErrorCode.ineligible_replica, f"Brokers {fenced} are fenced.")


def assignments(topic: Topic, partitions: Iterable[PartitionRegistration]) -> list[e.Event]:
    return [
        e.PartitionAssigned(
            tp=TopicPartition(topic.name, new.partition),
            topic_id=topic.topic_id,
            replicas=new.replicas,
            previous=None,
        )
        for new in partitions
    ]


def changes(topic: Topic, old: PartitionRegistration, new: PartitionRegistration) -> list[e.Event]:
    tp, topic_id = TopicPartition(topic.name, new.partition), topic.topic_id
    events: list[e.Event] = []
    if (new.replicas, new.adding, new.removing) != (old.replicas, old.adding, old.removing):
        events.append(
            e.PartitionAssigned(tp=tp, topic_id=topic_id, replicas=new.replicas, previous=old.replicas)
        )
    if new.leader_epoch != old.leader_epoch:
        events.append(
            e.LeaderChanged(tp=tp, topic_id=topic_id, leader=new.leader, leader_epoch=new.leader_epoch)
        )
    if new.isr != old.isr:
        events.append(e.IsrChanged(tp=tp, topic_id=topic_id, isr=new.isr, previous=old.isr))
    if not events:
        # Only the partition epoch changed: the leader needs it for its next ChangePartition.
        events.append(
            e.PartitionAssigned(tp=tp, topic_id=topic_id, replicas=new.replicas, previous=old.replicas)
        )
    return events
