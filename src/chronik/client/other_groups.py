"""Share groups (KIP-932) and streams groups (KIP-1071) from outside. Apache Kafka has them, chronik does not.

A streams group commits offsets as a consumer group does. A share group has where its records begin that are
not yet acknowledged by all, one offset for each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.client.apis import (
    DESCRIBE_SHARE_GROUP_OFFSETS,
    SHARE_GROUP_DESCRIBE,
    STREAMS_GROUP_DESCRIBE,
)
from chronik.client.group_types import CommittedOffset, GroupDescription, MemberDescription
from chronik.model import NO_OFFSET, ErrorCode, NodeId, RequestError, TopicPartition

if TYPE_CHECKING:
    from chronik.client.cluster import Cluster

__all__ = ["describe_share", "describe_streams", "share_offsets"]


async def describe_share(cluster: Cluster, group_id: str) -> GroupDescription:
    async def attempt(node_id: NodeId) -> GroupDescription:
        fields = {"group_ids": [group_id], "include_authorized_operations": False}
        (group,) = (await cluster.send(node_id, SHARE_GROUP_DESCRIBE, fields)).groups
        _check(group, group_id)
        return GroupDescription(
            group_id=group_id,
            state=group.group_state,
            group_type="share",
            assignor=group.assignor_name,
            coordinator_id=node_id,
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=None,
                    client_id=member.client_id,
                    host=member.client_host,
                    partitions=tuple(
                        TopicPartition(topic.topic_name, partition)
                        for topic in member.assignment.topic_partitions
                        for partition in topic.partitions
                    ),
                )
                for member in group.members
            ),
        )

    return await cluster.on_coordinator("group", group_id, attempt)


async def describe_streams(cluster: Cluster, group_id: str) -> GroupDescription:
    async def attempt(node_id: NodeId) -> GroupDescription:
        fields = {"group_ids": [group_id], "include_authorized_operations": False}
        (group,) = (await cluster.send(node_id, STREAMS_GROUP_DESCRIBE, fields)).groups
        _check(group, group_id)
        return GroupDescription(
            group_id=group_id,
            state=group.group_state,
            group_type="streams",
            assignor="",
            coordinator_id=node_id,
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    host=member.client_host,
                    partitions=(),
                    tasks=_tasks(member.assignment),
                )
                for member in group.members
            ),
        )

    return await cluster.on_coordinator("group", group_id, attempt)


def _tasks(assignment: Any) -> tuple[str, ...]:
    kinds = (("", assignment.active_tasks), (" (standby)", assignment.standby_tasks))
    return tuple(
        f"{task.subtopology_id}_{partition}{suffix}"
        for suffix, tasks in kinds
        for task in tasks
        for partition in task.partitions
    )


async def share_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, CommittedOffset]:
    """Where the group's records begin that are not yet acknowledged by all."""

    async def attempt(node_id: NodeId) -> dict[TopicPartition, CommittedOffset]:
        fields = {"groups": [{"group_id": group_id, "topics": None}]}
        (group,) = (await cluster.send(node_id, DESCRIBE_SHARE_GROUP_OFFSETS, fields)).groups
        _check(group, group_id)
        found = {}
        for topic in group.topics:
            for partition in topic.partitions:
                _check(partition, f"{group_id}: {topic.topic_name}-{partition.partition_index}")
                if partition.start_offset != NO_OFFSET:
                    found[TopicPartition(topic.topic_name, partition.partition_index)] = CommittedOffset(
                        offset=partition.start_offset, leader_epoch=partition.leader_epoch, metadata=""
                    )
        return dict(sorted(found.items()))

    return await cluster.on_coordinator("group", group_id, attempt)


def _check(result: Any, what: str) -> None:
    if result.error_code != ErrorCode.none:
        raise _error(result, what)


def _error(result: Any, what: str) -> RequestError:
    said = result.error_message or result.error_code.name.replace("_", " ")
    return RequestError(result.error_code, f"group {what}: {said}")
