"""Consumer groups: members, committed offsets, lag. Asked from whichever node coordinates them."""

from __future__ import annotations

import asyncio

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import on_group
from chronik.admin.visible import allowed_on
from chronik.client.groups import Groups
from chronik.client.offsets import LATEST, list_offsets
from chronik.model import ChronikError, ErrorCode, NodeId, RequestError, TopicPartition
from chronik.security.acls import Operation, ResourceType
from chronik.server.gate import all_of, asks

DESCRIBED_AT_ONCE = 16


class GroupPartition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    committed_offset: int
    end_offset: int | None
    """Null when the partition is gone or has no leader."""
    lag: int | None
    member_id: str | None


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    client_id: str
    host: str
    partition_count: int


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    state: str
    group_type: str
    assignor: str
    coordinator: NodeId
    lag: int | None
    """Sum over the partitions with a known end."""
    members: list[GroupMember]
    partitions: list[GroupPartition]
    allowed: tuple[str, ...]
    """What the caller may do with the group."""


class GroupList(msgspec.Struct, frozen=True):
    groups: list[GroupView]
    incomplete: list[str]
    """Groups whose coordinator did not answer."""


class GroupDeleted(msgspec.Struct, frozen=True):
    group_id: str


@endpoint(
    "GET",
    "/admin/groups",
    needs=asks((Operation.DESCRIBE, ResourceType.GROUP), (Operation.DESCRIBE, ResourceType.TOPIC)),
    summary="Consumer groups and their lag",
    answer=GroupList,
)
async def groups(call: HttpCall) -> GroupList:
    client = Groups(call.context.loopback.cluster())
    listed = [
        group
        for group in await client.list()
        if call.access.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
    ]
    at_once = asyncio.Semaphore(DESCRIBED_AT_ONCE)

    async def one(group_id: str) -> GroupView | None:
        async with at_once:
            try:
                return await _describe(call, client, group_id)
            except ChronikError:
                return None

    found = await asyncio.gather(*(one(group.group_id) for group in listed))
    missing = [group.group_id for group, result in zip(listed, found, strict=True) if result is None]
    return GroupList([view for view in found if view is not None], missing)


@endpoint(
    "GET",
    "/admin/groups/{group_id}",
    needs=all_of(on_group(Operation.DESCRIBE), asks((Operation.DESCRIBE, ResourceType.TOPIC))),
    summary="One group",
    answer=GroupView,
)
async def group_details(call: HttpCall) -> GroupView:
    client = Groups(call.context.loopback.cluster())
    return await _describe(call, client, call.path["group_id"])


@endpoint(
    "DELETE",
    "/admin/groups/{group_id}",
    needs=on_group(Operation.DELETE),
    summary="Delete a group that has no members, with the offsets that it committed",
    answer=GroupDeleted,
    access=HttpAccess.CHANGE,
)
async def delete_group(call: HttpCall) -> GroupDeleted:
    group_id = call.path["group_id"]
    try:
        await Groups(call.context.loopback.cluster()).delete(group_id)
    except RequestError as error:
        if error.code is ErrorCode.non_empty_group:
            raise HttpError(
                409, error.code.name, f"Group {group_id!r} has members: stop them first."
            ) from None
        if error.code is ErrorCode.group_id_not_found:
            raise HttpError(404, error.code.name, f"There is no group {group_id!r}.") from None
        raise
    return GroupDeleted(group_id)


async def _describe(call: HttpCall, client: Groups, group_id: str) -> GroupView:
    context = call.context
    described, offsets = await asyncio.gather(client.describe(group_id), client.offsets(group_id))
    committed = {
        tp: at
        for tp, at in offsets.items()
        if call.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, tp.topic)
    }
    known = [tp for tp in committed if context.state.partition(tp) is not None]
    ends: dict[TopicPartition, int] = {}
    try:
        found = await list_offsets(context.loopback.cluster(), dict.fromkeys(known, LATEST))
        ends = {tp: at.offset for tp, at in found.items()}
    except ChronikError:
        pass
    owners = {tp: member.member_id for member in described.members for tp in member.partitions}
    partitions = [
        GroupPartition(
            topic=tp.topic,
            partition=tp.partition,
            committed_offset=at.offset,
            end_offset=ends.get(tp),
            lag=max(0, ends[tp] - at.offset) if tp in ends and at.offset >= 0 else None,
            member_id=owners.get(tp),
        )
        for tp, at in committed.items()
    ]
    lags = [one.lag for one in partitions if one.lag is not None]
    return GroupView(
        group_id=group_id,
        state=described.state,
        group_type=described.group_type,
        assignor=described.assignor,
        coordinator=described.coordinator_id,
        lag=sum(lags) if lags else None,
        members=[
            GroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                host=member.host,
                partition_count=len(member.partitions),
            )
            for member in described.members
        ],
        partitions=partitions,
        allowed=allowed_on(call, ResourceType.GROUP, group_id),
    )
