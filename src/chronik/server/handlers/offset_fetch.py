"""OffsetFetch: how far groups have read. From version 8 on for several groups at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from chronik.groups.committing import FetchedOffset
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import all_of, asks, each, on_group
from chronik.server.handlers.offset_commit import topic_name
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as OffsetFetchRequestV7
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequestTopic as TopicV7
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequest as OffsetFetchRequestV9
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequestGroup as GroupV9
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequestTopics as TopicV9
    from kio.schema.offset_fetch.v10.request import OffsetFetchRequest as OffsetFetchRequestV10
    from kio.schema.offset_fetch.v10.request import OffsetFetchRequestGroup as GroupV10
    from kio.schema.offset_fetch.v10.request import OffsetFetchRequestTopics as TopicV10

    Topic: TypeAlias = TopicV7 | TopicV9 | TopicV10
    Group: TypeAlias = OffsetFetchRequestV7 | GroupV9 | GroupV10
    Request: TypeAlias = OffsetFetchRequestV7 | OffsetFetchRequestV9 | OffsetFetchRequestV10


def _on_error(request: Request, code: ErrorCode, message: str | None) -> Reply:
    if hasattr(request, "groups"):
        return reply(
            groups=[{"group_id": one.group_id, "topics": [], "error_code": code} for one in request.groups]
        )
    topics = [
        {
            "name": topic.name,
            "partitions": [_nothing(partition, code) for partition in topic.partition_indexes],
        }
        for topic in request.topics or ()
    ]
    return reply(topics=topics, error_code=code)


def _nothing(partition: int, code: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": code,
    }


@handles(
    ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    needs=all_of(
        on_group(Operation.DESCRIBE),
        each("groups", "group_id", Operation.DESCRIBE, ResourceType.GROUP),
        asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    ),
    decoded_as=(7, 9, 10),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def offset_fetch(request: Request, ctx: RequestContext) -> Reply:
    if not hasattr(request, "groups"):
        return reply(error_code=ErrorCode.none, topics=await _fetch(request, request, ctx))
    groups = []
    for group in request.groups:
        try:
            topics = await _fetch(request, group, ctx)
            groups.append({"group_id": group.group_id, "topics": topics, "error_code": ErrorCode.none})
        except RequestError as error:
            code, _ = error_of(error, ErrorCode.coordinator_not_available)
            groups.append({"group_id": group.group_id, "topics": [], "error_code": code})
    return reply(groups=groups)


async def _fetch(request: Request, group: Group, ctx: RequestContext) -> list[dict[str, Any]]:
    """The topics of one group, in the order in which they were asked for."""
    state = ctx.services.state
    wanted: list[TopicPartition] | None = None
    names: list[tuple[Topic, str | None]] = []
    hidden: set[str] = set()
    # Null asks for everything that the group committed.
    if group.topics is not None:
        names = [(topic, topic_name(state, topic)) for topic in group.topics]
        hidden = {name for _, name in names if name is not None and not _may_see(ctx, name)}
        wanted = [
            TopicPartition(name, partition)
            for topic, name in names
            if name is not None and name not in hidden
            for partition in topic.partition_indexes
        ]
    found = await ctx.services.groups.fetch(
        group.group_id,
        wanted,
        require_stable=request.require_stable,
        member_id=group.member_id if hasattr(group, "member_id") else None,
        member_epoch=group.member_epoch if hasattr(group, "member_epoch") else -1,
    )
    by_topic: dict[str, list[FetchedOffset]] = {}
    for one in found:
        by_topic.setdefault(one.tp.topic, []).append(one)
    if wanted is None:
        return [
            _topic(name, known.topic_id if (known := state.topics.get(name)) else None, offsets)
            for name, offsets in by_topic.items()
            if _may_see(ctx, name) and (name in state.topics or ctx.api_version < 10)
        ]
    described = []
    for topic, name in names:
        topic_id = topic.topic_id if hasattr(topic, "topic_id") else None
        if name is None:
            partitions = [_nothing(one, ErrorCode.unknown_topic_id) for one in topic.partition_indexes]
            described.append({"name": "", "topic_id": topic_id, "partitions": partitions})
            continue
        if name in hidden:
            code = ErrorCode.topic_authorization_failed
            partitions = [_nothing(one, code) for one in topic.partition_indexes]
            described.append({"name": name, "topic_id": topic_id, "partitions": partitions})
            continue
        asked = set(topic.partition_indexes)
        offsets = [one for one in by_topic.get(name, []) if one.tp.partition in asked]
        described.append(_topic(name, topic_id, offsets))
    return described


def _may_see(ctx: RequestContext, topic: str) -> bool:
    return ctx.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def _topic(name: str, topic_id: UUID | None, offsets: list[FetchedOffset]) -> dict[str, Any]:
    partitions = []
    for one in offsets:
        answer = _nothing(one.tp.partition, one.error)
        if one.committed is not None:
            answer["committed_offset"] = one.committed.offset
            answer["committed_leader_epoch"] = one.committed.leader_epoch
            answer["metadata"] = one.committed.metadata
        partitions.append(answer)
    return {"name": name, "topic_id": topic_id, "partitions": partitions}
