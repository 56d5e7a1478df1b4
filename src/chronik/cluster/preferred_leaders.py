"""Leader changes that somebody asks for: back to the preferred replica, or unclean. Pure.

Who leads after a broker died is decided in `metadata/elections.py`.
"""

from __future__ import annotations

from chronik.metadata.commands import ChangePartition
from chronik.metadata.state import ClusterState
from chronik.metadata.values import PartitionRegistration, Topic
from chronik.model import NO_LEADER, ErrorCode, NodeId, RequestError

__all__ = ["elect_preferred", "elect_unclean", "preferred_changes"]


def preferred_changes(state: ClusterState) -> list[ChangePartition]:
    """Give every partition back to its preferred leader where that one can lead."""
    return [
        _change(topic, partition, partition.replicas[0])
        for topic in state.topics.values()
        for partition in topic.partitions
        if partition.leader != partition.replicas[0] and _can_lead(state, partition, partition.replicas[0])
    ]


def elect_preferred(state: ClusterState, topic: Topic, partition: PartitionRegistration) -> ChangePartition:
    """RequestError with the reason if there is nothing to elect."""
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise RequestError(ErrorCode.election_not_needed, f"Node {preferred} leads already.")
    if not _can_lead(state, partition, preferred):
        raise RequestError(
            ErrorCode.preferred_leader_not_available, f"Node {preferred} is not alive and in sync."
        )
    return _change(topic, partition, preferred)


def elect_unclean(state: ClusterState, topic: Topic, partition: PartitionRegistration) -> ChangePartition:
    """A leader for a partition that has none: in sync if there is one, else any that is alive."""
    if partition.leader != NO_LEADER and state.is_alive(partition.leader):
        raise RequestError(ErrorCode.election_not_needed, f"Node {partition.leader} leads.")
    alive = [replica for replica in partition.replicas if state.is_alive(replica)]
    if not alive:
        raise RequestError(ErrorCode.eligible_leaders_not_available, "No replica is alive.")
    in_sync = [replica for replica in alive if replica in partition.isr]
    return _change(topic, partition, (in_sync or alive)[0], unclean=not in_sync)


def _can_lead(state: ClusterState, partition: PartitionRegistration, node: NodeId) -> bool:
    return node in partition.isr and state.is_alive(node)


def _change(
    topic: Topic, partition: PartitionRegistration, leader: NodeId, *, unclean: bool = False
) -> ChangePartition:
    return ChangePartition(
        topic_id=topic.topic_id,
        partition=partition.partition,
        partition_epoch=partition.partition_epoch,
        leader=leader,
        unclean=unclean,
    )
