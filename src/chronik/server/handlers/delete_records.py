"""DeleteRecords: move the start of partitions up."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.server.dispatch import Reply, RequestContext, error_of, handles, reply
from chronik.wire.api import ApiKey

_HIGH_WATERMARK: Final = -1
_NO_LOW_WATERMARK: Final = -1


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return reply(
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    _result(one.partition_index, _NO_LOW_WATERMARK, code) for one in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    )


@handles(
    ApiKey.DELETE_RECORDS, versions=(0, 2), on_error=_on_error, unavailable=ErrorCode.not_leader_or_follower
)
async def delete_records(request: Any, ctx: RequestContext) -> Reply:
    timeout_s = max(0.0, request.timeout.total_seconds())
    return reply(
        topics=[
            {
                "name": topic.name,
                "partitions": await asyncio.gather(
                    *(_delete(ctx, topic.name, one, timeout_s) for one in topic.partitions)
                ),
            }
            for topic in request.topics
        ]
    )


async def _delete(ctx: RequestContext, topic: str, wanted: Any, timeout_s: float) -> dict[str, Any]:
    try:
        if ctx.services.topic_config(topic).cleanup_policy == ("compact",):
            raise RequestError(ErrorCode.policy_violation)
        partition = ctx.services.replicas.leader(TopicPartition(topic, wanted.partition_index))
        offset = partition.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
        if not 0 <= offset <= partition.high_watermark:
            raise RequestError(ErrorCode.offset_out_of_range)
        async with asyncio.timeout(timeout_s):
            low_watermark = await partition.delete_records(offset)
    except Exception as error:
        code, _ = error_of(error, ErrorCode.not_leader_or_follower)
        return _result(wanted.partition_index, _NO_LOW_WATERMARK, code)
    return _result(wanted.partition_index, low_watermark, ErrorCode.none)


def _result(partition: int, low_watermark: int, code: ErrorCode) -> dict[str, Any]:
    return {"partition_index": partition, "low_watermark": low_watermark, "error_code": code}
