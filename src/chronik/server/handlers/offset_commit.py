"""OffsetCommit: a group remembers how far it has read."""

from __future__ import annotations

from typing import Any

from chronik.groups.committing import OffsetCommit
from chronik.groups.offsets import Committed
from chronik.metadata.state import ClusterState
from chronik.model import ErrorCode, TopicPartition
from chronik.server.dispatch import Reply, RequestContext, error_of, handles, reply
from chronik.wire.api import ApiKey


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return answer(request, lambda topic, partition: code)


def answer(request: Any, code_of: Any) -> Reply:
    """The same shape as the request, with one code per partition."""
    return reply(
        topics=[
            {
                **({"name": topic.name} if hasattr(topic, "name") else {"topic_id": topic.topic_id}),
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": code_of(topic, one.partition_index),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    )


def topic_name(state: ClusterState, topic: Any) -> str | None:
    """The topic's name, from version 10 on by its id; None if there is no such id."""
    if hasattr(topic, "name"):
        return str(topic.name)
    found = None if topic.topic_id is None else state.topic_by_id(topic.topic_id)
    return None if found is None else found.name


def check_offset(state: ClusterState, tp: TopicPartition, metadata: str, bytes_max: int) -> ErrorCode:
    if state.partition(tp) is None:
        return ErrorCode.unknown_topic_or_partition
    if len(metadata.encode()) > bytes_max:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


@handles(
    ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def offset_commit(request: Any, ctx: RequestContext) -> Reply:
    services = ctx.services
    now_ms = services.now_ms()
    # Versions 2 to 4 may ask for a retention time of their own; -1 is the broker's.
    retention = getattr(request, "retention_time", None)
    retention_ms = -1 if retention is None else int(retention.total_seconds() * 1000)
    codes: dict[tuple[int, int], ErrorCode] = {}
    offsets: dict[TopicPartition, Committed] = {}
    for topic in request.topics:
        name = topic_name(services.state, topic)
        for one in topic.partitions:
            if name is None:
                codes[id(topic), one.partition_index] = ErrorCode.unknown_topic_id
                continue
            tp = TopicPartition(name, one.partition_index)
            metadata = one.committed_metadata or ""
            code = check_offset(
                services.state, tp, metadata, services.groups.config.offset_metadata_bytes_max
            )
            codes[id(topic), one.partition_index] = code
            if code is ErrorCode.none:
                offsets[tp] = Committed(
                    one.committed_offset,
                    getattr(one, "committed_leader_epoch", -1),
                    metadata,
                    now_ms,
                    expire_timestamp_ms=-1 if retention_ms < 0 else now_ms + retention_ms,
                )
    try:
        await services.groups.commit(
            OffsetCommit(
                group_id=request.group_id,
                member_id=request.member_id,
                instance_id=getattr(request, "group_instance_id", None),
                generation=request.generation_id_or_member_epoch,
                offsets=offsets,
                knows_member_epochs=ctx.api_version >= 9,
            )
        )
    except Exception as error:
        failed, _ = error_of(error, ErrorCode.coordinator_not_available)
        if failed is ErrorCode.unknown_server_error:
            raise
        codes = {key: failed if code is ErrorCode.none else code for key, code in codes.items()}
    return answer(request, lambda topic, partition: codes[id(topic), partition])
