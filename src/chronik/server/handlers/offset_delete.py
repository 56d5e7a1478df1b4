"""OffsetDelete: deletes committed offsets of topics that no member of the group is subscribed to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import all_of, each_topic, on_group
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest


def _on_error(request: OffsetDeleteRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, topics=[])


@handles(
    ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    needs=all_of(on_group(Operation.DELETE), each_topic(Operation.READ)),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def offset_delete(request: OffsetDeleteRequest, ctx: RequestContext) -> Reply:
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
