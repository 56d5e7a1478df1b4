"""DescribeProducers: what partitions remember of their producers, to find transactions that hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.model import ErrorCode, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import each_topic
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest


def _on_error(request: DescribeProducersRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": code, "error_message": message}
                    for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    )


@handles(
    ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    needs=each_topic(Operation.READ),
    on_error=_on_error,
    unavailable=ErrorCode.not_leader_or_follower,
)
async def describe_producers(request: DescribeProducersRequest, ctx: RequestContext) -> Reply:
    return reply(
        topics=[
            {
                "name": topic.name,
                "partitions": [
                    _partition(ctx, TopicPartition(topic.name, index)) for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
    )


def _partition(ctx: RequestContext, tp: TopicPartition) -> dict[str, Any]:
    try:
        producers = ctx.services.replicas.leader(tp).log.producers
    except Exception as error:
        code, message = error_of(error, ErrorCode.not_leader_or_follower)
        return {"partition_index": tp.partition, "error_code": code, "error_message": message}
    return {
        "partition_index": tp.partition,
        "error_code": ErrorCode.none,
        "active_producers": [
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.producer_epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.last_timestamp_ms,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": entry.txn_first_offset,
            }
            for entry in producers or ()
        ],
    }
