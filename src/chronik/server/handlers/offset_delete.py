"""OffsetDelete: a group forgets how far it has read topics that none of its members reads."""

from __future__ import annotations

from typing import Any

from chronik.model import ErrorCode, TopicPartition
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey


@handles(ApiKey.OFFSET_DELETE, versions=(0, 0), unavailable=ErrorCode.coordinator_not_available)
async def offset_delete(request: Any, ctx: RequestContext) -> Reply:
    state = ctx.services.state
    tps = [
        TopicPartition(topic.name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
    ]
    existing = [tp for tp in tps if state.partition(tp) is not None]
    codes = await ctx.services.groups.delete_offsets(request.group_id, existing)
    return reply(
        error_code=ErrorCode.none,
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": codes.get(
                            TopicPartition(topic.name, one.partition_index),
                            ErrorCode.unknown_topic_or_partition,
                        ),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    )
