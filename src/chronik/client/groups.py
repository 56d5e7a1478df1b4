"""Consumer groups from outside: who is in them, what they committed, and changes to that."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from chronik.client.apis import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)
from chronik.client.cluster import Cluster
from chronik.client.group_types import CommittedOffset, GroupDescription, GroupListing, MemberDescription
from chronik.client.offsets import by_topic, commit_fields, raise_worst
from chronik.client.other_groups import describe_share, describe_streams
from chronik.model import ErrorCode, NodeId, PeerError, RequestError, TopicPartition

_NOT_THIS_PROTOCOL: Final = frozenset({ErrorCode.group_id_not_found, ErrorCode.unsupported_version})


class Groups:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(self) -> list[GroupListing]:
        """Every group; each node tells those it coordinates."""

        async def ask(node_id: NodeId) -> list[GroupListing]:
            response = await self._cluster.send(node_id, LIST_GROUPS, {})
            _check(response.error_code, f"node {node_id}")
            return [
                GroupListing(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    state=getattr(group, "group_state", ""),
                    group_type=getattr(group, "group_type", ""),
                )
                for group in response.groups
            ]

        async def ask_all() -> Iterable[GroupListing]:
            answers = await asyncio.gather(*(ask(node_id) for node_id in await self._cluster.node_ids()))
            return {group.group_id: group for groups in answers for group in groups}.values()

        return sorted(await self._cluster.retry().run(ask_all), key=lambda group: group.group_id)

    async def describe(self, group_id: str) -> GroupDescription:
        """A group of any type. RequestError(group_id_not_found) if there is none."""
        try:
            return await self._describe(group_id)
        except RequestError as error:
            if error.code != ErrorCode.group_id_not_found:
                raise
            # No chronik node has such groups, but a cluster of Apache Kafka may.
            kind = await self.type_of(group_id)
            if kind == "share":
                return await describe_share(self._cluster, group_id)
            if kind == "streams":
                return await describe_streams(self._cluster, group_id)
            raise

    async def _describe(self, group_id: str) -> GroupDescription:
        async def attempt(node_id: NodeId) -> GroupDescription:
            try:
                return await self._describe_consumer(node_id, group_id)
            except RequestError as error:
                if error.code not in _NOT_THIS_PROTOCOL:
                    raise
            return await self._describe_classic(node_id, group_id)

        return await self._cluster.on_coordinator("group", group_id, attempt)

    async def offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Everything the group committed."""

        async def attempt(node_id: NodeId) -> dict[TopicPartition, CommittedOffset]:
            fields = {"groups": [{"group_id": group_id, "topics": None}], "require_stable": True}
            response = await self._cluster.send(node_id, OFFSET_FETCH, fields)
            (group,) = response.groups
            _check(group.error_code, f"group {group_id!r}")
            found: dict[TopicPartition, CommittedOffset] = {}
            for topic in group.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name, partition.partition_index)
                    _check(partition.error_code, f"group {group_id!r}, {tp}")
                    found[tp] = CommittedOffset(
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata or "",
                    )
            return dict(sorted(found.items()))

        return await self._cluster.on_coordinator("group", group_id, attempt)

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        member_id: str = "",
        member_epoch: int = -1,
        metadata: str = "",
    ) -> None:
        """Set offsets of a group: as one of its members, or from outside while it has none."""
        fields = {
            "group_id": group_id,
            "generation_id_or_member_epoch": member_epoch,
            "member_id": member_id,
            "retention_time": -1,
            "topics": commit_fields(offsets, metadata),
        }
        await self._change_offsets(group_id, OFFSET_COMMIT, fields)

    async def delete_offsets(self, group_id: str, tps: Collection[TopicPartition]) -> None:
        fields = {
            "group_id": group_id,
            "topics": [
                {"name": topic, "partitions": [{"partition_index": tp.partition} for tp in group]}
                for topic, group in by_topic(tps).items()
            ],
        }
        await self._change_offsets(group_id, OFFSET_DELETE, fields)

    async def delete(self, group_id: str) -> None:
        async def attempt(node_id: NodeId) -> None:
            response = await self._cluster.send(node_id, DELETE_GROUPS, {"groups_names": [group_id]})
            _check(response.results[0].error_code, f"group {group_id!r}")

        await self._cluster.on_coordinator("group", group_id, attempt)

    async def _change_offsets(self, group_id: str, api: Any, fields: Mapping[str, object]) -> None:
        async def attempt(node_id: NodeId) -> None:
            response = await self._cluster.send(node_id, api, fields)
            _check(getattr(response, "error_code", ErrorCode.none), f"group {group_id!r}")
            raise_worst(
                _error(partition.error_code, f"group {group_id!r}, {topic.name}-{partition.partition_index}")
                for topic in response.topics
                for partition in topic.partitions
                if partition.error_code != ErrorCode.none
            )

        await self._cluster.on_coordinator("group", group_id, attempt)

    async def type_of(self, group_id: str) -> str:
        """The type of a group, as nodes list it; "" if there is no such group."""
        found = [group.group_type.lower() for group in await self.list() if group.group_id == group_id]
        return found[0] if found else ""

    async def _describe_consumer(self, node_id: NodeId, group_id: str) -> GroupDescription:
        fields = {"group_ids": [group_id], "include_authorized_operations": False}
        (group,) = (await self._cluster.send(node_id, CONSUMER_GROUP_DESCRIBE, fields)).groups
        _check(group.error_code, f"group {group_id!r}")
        return GroupDescription(
            group_id=group_id,
            state=group.group_state,
            group_type="consumer",
            assignor=group.assignor_name,
            coordinator_id=node_id,
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
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

    async def _describe_classic(self, node_id: NodeId, group_id: str) -> GroupDescription:
        fields = {"groups": [group_id], "include_authorized_operations": False}
        (group,) = (await self._cluster.send(node_id, DESCRIBE_GROUPS, fields)).groups
        _check(group.error_code, f"group {group_id!r}")
        if group.group_state == "Dead":  # how versions before 6 say that there is none
            raise _error(ErrorCode.group_id_not_found, f"group {group_id!r}")
        return GroupDescription(
            group_id=group_id,
            state=group.group_state,
            group_type="classic",
            assignor=group.protocol_data,
            coordinator_id=node_id,
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=getattr(member, "group_instance_id", None),
                    client_id=member.client_id,
                    host=member.client_host,
                    partitions=read_assignment(bytes(member.member_assignment))
                    if group.protocol_type == "consumer"
                    else (),
                )
                for member in group.members
            ),
        )


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in an assignment of the classic consumer protocol; what follows them is left alone."""
    if not data:
        return ()
    partitions: list[TopicPartition] = []
    try:
        _version, topic_count = struct.unpack_from(">hi", data)
        position = 6
        for _ in range(topic_count):
            (length,) = struct.unpack_from(">h", data, position)
            topic = data[position + 2 : position + 2 + length].decode()
            position += 2 + length
            (count,) = struct.unpack_from(">i", data, position)
            numbers: Sequence[int] = struct.unpack_from(f">{count}i", data, position + 4)
            position += 4 + 4 * count
            partitions += (TopicPartition(topic, number) for number in numbers)
    except (struct.error, UnicodeDecodeError, MemoryError, OverflowError) as error:
        raise PeerError(f"a member's assignment cannot be read: {error}") from error
    return tuple(partitions)


def _check(code: ErrorCode, what: str) -> None:
    if code != ErrorCode.none:
        raise _error(code, what)


def _error(code: ErrorCode, what: str) -> RequestError:
    return RequestError(code, f"{what}: {code.name.replace('_', ' ')}")
