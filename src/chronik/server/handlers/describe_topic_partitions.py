"""DescribeTopicPartitions: topics in pages of partitions (KIP-966)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronik.model import ErrorCode, RequestError, is_internal_topic
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import asks
from chronik.server.topic_answers import describe_partition
from chronik.server.topics import check_topic_name
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest

_PARTITIONS_MAX: Final = 2000
_NO_ELR: Final[dict[str, Any]] = {"eligible_leader_replicas": (), "last_known_elr": ()}
"""The schema allows null here, but Apache Kafka's admin client does not check for it."""


def _on_error(request: DescribeTopicPartitionsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(topics=[{"error_code": code, "name": topic.name} for topic in request.topics])


@handles(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    on_error=_on_error,
)
async def describe_topic_partitions(request: DescribeTopicPartitionsRequest, ctx: RequestContext) -> Reply:
    """Sorted by name, so that a cursor stays valid while topics are created and deleted."""
    state = ctx.services.state
    access = ctx.access
    asked = {topic.name for topic in request.topics}
    first_topic, first_partition = "", 0
    if request.cursor is not None:
        first_topic, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0:
            raise RequestError(ErrorCode.invalid_request, "The cursor's partition is negative.")
    left = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    topics: list[dict[str, Any]] = []
    for name in sorted(name for name in asked or state.topics if name >= first_topic):
        if not access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            if asked:
                access.note_refusal(Operation.DESCRIBE, ResourceType.TOPIC, name)
                topics.append(_failed(name, ErrorCode.topic_authorization_failed))
            continue
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
                "is_internal": is_internal_topic(name),
                "partitions": [describe_partition(state, partition) | _NO_ELR for partition in page],
                "topic_authorized_operations": access.operations(ResourceType.TOPIC, name),
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
    return _failed(name, code)


def _failed(name: str, code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "name": name, "partitions": ()}
