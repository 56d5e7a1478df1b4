"""DeleteRecords: move the start of partitions up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.replication.partition import Partition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import each_topic
from chronik.server.internal_topics import refuse_internal
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest

_HIGH_WATERMARK: Final = -1
_NO_LOW_WATERMARK: Final = -1


def _on_error(request: DeleteRecordsRequest, code: ErrorCode, message: str | None) -> Reply:
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
    ApiKey.DELETE_RECORDS,
    versions=(0, 2),
    needs=each_topic(Operation.DELETE),
    on_error=_on_error,
    unavailable=ErrorCode.not_leader_or_follower,
)
async def delete_records(request: DeleteRecordsRequest, ctx: RequestContext) -> Reply:
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


async def _delete(
    ctx: RequestContext, topic: str, wanted: DeleteRecordsPartition, timeout_s: float
) -> dict[str, Any]:
    try:
        refuse_internal(topic, ErrorCode.invalid_topic_exception, "delete records of")
        if ctx.services.topic_config(topic).cleanup_policy == ("compact",):
            raise RequestError(ErrorCode.policy_violation)
        partition = ctx.services.replicas.leader(TopicPartition(topic, wanted.partition_index))
        offset = partition.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
        if not 0 <= offset <= partition.high_watermark:
            raise RequestError(ErrorCode.offset_out_of_range)
        low_watermark = await _deleted(ctx, partition, offset, timeout_s)
    except Exception as error:
        code, _ = error_of(error, ErrorCode.not_leader_or_follower)
        return _result(wanted.partition_index, _NO_LOW_WATERMARK, code)
    return _result(wanted.partition_index, low_watermark, ErrorCode.none)


async def _deleted(ctx: RequestContext, partition: Partition, offset: int, timeout_s: float) -> int:
    """The client's time-out only limits the wait for followers. This node moves its own log start in any
    case, even with a time-out of 0, and is not interrupted between the WAL entry and the change in memory."""
    outcome: asyncio.Future[int | Exception] = asyncio.get_running_loop().create_future()

    async def delete() -> None:
        try:
            outcome.set_result(await partition.delete_records(offset, ctx.services.now_ms()))
        except Exception as error:
            outcome.set_result(error)

    ctx.services.spawn(delete())
    await asyncio.wait({outcome}, timeout=timeout_s if partition.followers else None)
    if not outcome.done():
        raise RequestError(ErrorCode.request_timed_out)
    result = outcome.result()
    if isinstance(result, Exception):
        raise result
    return result


def _result(partition: int, low_watermark: int, code: ErrorCode) -> dict[str, Any]:
    return {"partition_index": partition, "low_watermark": low_watermark, "error_code": code}
