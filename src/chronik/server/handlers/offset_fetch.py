"""OffsetFetch: how far groups have read. From version 8 on for several groups at once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from chronik.groups.committing import FetchedOffset
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.server.dispatch import Reply, RequestContext, error_of, handles, reply
from chronik.server.handlers.offset_commit import topic_name
from chronik.wire.api import ApiKey

_MANY_GROUPS = 8


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    groups = [
        {"group_id": one.group_id, "topics": [], "error_code": code} for one in getattr(request, "groups", ())
    ]
    topics = [
        {
            "name": topic.name,
            "partitions": [_nothing(partition, code) for partition in topic.partition_indexes],
        }
        for topic in getattr(request, "topics", None) or ()
    ]
    return reply(groups=groups, topics=topics, error_code=code)


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
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def offset_fetch(request: Any, ctx: RequestContext) -> Reply:
    if ctx.api_version < _MANY_GROUPS:
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


async def _fetch(request: Any, group: Any, ctx: RequestContext) -> list[dict[str, Any]]:
    """The topics of one group, in the order in which they were asked for."""
    state = ctx.services.state
    wanted: list[TopicPartition] | None = None
    names: list[tuple[Any, str | None]] = []
    # Null asks for everything that the group committed.
    if group.topics is not None:
        names = [(topic, topic_name(state, topic)) for topic in group.topics]
        wanted = [
            TopicPartition(name, partition)
            for topic, name in names
            if name is not None
            for partition in topic.partition_indexes
        ]
    found = await ctx.services.groups.fetch(
        group.group_id,
        wanted,
        require_stable=getattr(request, "require_stable", False),
        member_id=getattr(group, "member_id", None),
        member_epoch=getattr(group, "member_epoch", -1),
    )
    by_topic: dict[str, list[FetchedOffset]] = {}
    for one in found:
        by_topic.setdefault(one.tp.topic, []).append(one)
    if wanted is None:
        return [
            _topic(name, known.topic_id if (known := state.topics.get(name)) else None, offsets)
            for name, offsets in by_topic.items()
            if name in state.topics or ctx.api_version < 10
        ]
    described = []
    for topic, name in names:
        if name is None:
            partitions = [_nothing(one, ErrorCode.unknown_topic_id) for one in topic.partition_indexes]
            described.append({"name": "", "topic_id": topic.topic_id, "partitions": partitions})
            continue
        asked = set(topic.partition_indexes)
        offsets = [one for one in by_topic.get(name, []) if one.tp.partition in asked]
        described.append(_topic(name, getattr(topic, "topic_id", None), offsets))
    return described


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
