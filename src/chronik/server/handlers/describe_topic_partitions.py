"""DescribeTopicPartitions: topics in pages of partitions (KIP-966)."""

from __future__ import annotations

from typing import Any, Final

from chronik.model import ErrorCode, RequestError
from chronik.server.authorized import TOPIC_OPERATIONS
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.handlers.metadata import describe_partition
from chronik.server.topics import INTERNAL_TOPICS, check_topic_name
from chronik.wire.api import ApiKey

_PARTITIONS_MAX: Final = 2000
_NO_ELR: Final[dict[str, Any]] = {"eligible_leader_replicas": (), "last_known_elr": ()}
"""Null would do by the schema, but Apache Kafka's admin client reads the lists without looking."""


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return reply(topics=[{"error_code": code, "name": topic.name} for topic in request.topics])


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), on_error=_on_error)
async def describe_topic_partitions(request: Any, ctx: RequestContext) -> Reply:
    """Topics go by name, so that a cursor holds its place while topics come and go."""
    state = ctx.services.state
    asked = {topic.name for topic in request.topics}
    first_topic, first_partition = "", 0
    if request.cursor is not None:
        first_topic, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0:
            raise RequestError(ErrorCode.invalid_request, "The cursor's partition is negative.")
    left = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    topics: list[dict[str, Any]] = []
    for name in sorted(name for name in asked or state.topics if name >= first_topic):
        topic = state.topics.get(name)
        if topic is None:
            topics.append(_unknown(ctx, name))
            continue
        if left == 0:
            return reply(topics=topics, next_cursor={"topic_name": name, "partition_index": 0})
        start = first_partition if name == first_topic else 0
        page = topic.partitions[start : start + left]
        left -= len(page)
        topics.append(
            {
                "error_code": ErrorCode.none,
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": name in INTERNAL_TOPICS,
                "partitions": [describe_partition(state, partition) | _NO_ELR for partition in page],
                "topic_authorized_operations": TOPIC_OPERATIONS,
            }
        )
        if start + len(page) < len(topic.partitions):
            cursor = {"topic_name": name, "partition_index": start + len(page)}
            return reply(topics=topics, next_cursor=cursor)
    return reply(topics=topics, next_cursor=None)


def _unknown(ctx: RequestContext, name: str) -> dict[str, Any]:
    code = ErrorCode.unknown_topic_or_partition
    try:
        check_topic_name(name, ctx.services.limits.topic_name_length_max)
    except RequestError as error:
        code = error.code
    return {"error_code": code, "name": name, "partitions": ()}
