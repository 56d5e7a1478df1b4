"""OffsetForLeaderEpoch: the end offset of a leader epoch. A client detects truncation with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.model import NO_EPOCH, NO_OFFSET, ErrorCode, TopicPartition
from chronik.replication.partition import Partition
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import each
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4.request import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
    )


def _on_error(request: OffsetForLeaderEpochRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(
        topics=[
            {
                "topic": topic.topic,
                "partitions": [_result(one.partition, code, NO_EPOCH, NO_OFFSET) for one in topic.partitions],
            }
            for topic in request.topics
        ]
    )


@handles(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    needs=each(
        "topics",
        "topic",
        Operation.DESCRIBE,
        ResourceType.TOPIC,
        unless_on_cluster=Operation.CLUSTER_ACTION,
    ),
    on_error=_on_error,
    unavailable=ErrorCode.not_leader_or_follower,
)
async def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, ctx: RequestContext) -> Reply:
    return reply(
        topics=[
            {
                "topic": topic.topic,
                "partitions": [await _answer(ctx, topic.topic, one) for one in topic.partitions],
            }
            for topic in request.topics
        ]
    )


async def _answer(ctx: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> dict[str, Any]:
    try:
        partition = ctx.services.replicas.leader(TopicPartition(topic, wanted.partition))
        partition.check_epoch(wanted.current_leader_epoch)
        epoch, end_offset = await epoch_end(partition, wanted.leader_epoch)
    except Exception as error:
        code, _ = error_of(error, ErrorCode.not_leader_or_follower)
        return _result(wanted.partition, code, NO_EPOCH, NO_OFFSET)
    return _result(wanted.partition, ErrorCode.none, epoch, end_offset)


async def epoch_end(partition: Partition, epoch: int) -> tuple[int, int]:
    """The largest epoch up to `epoch` that wrote here, and the offset at which the next one began."""
    if epoch == partition.leader_epoch:
        return epoch, partition.log_end_offset
    if not 0 <= epoch < partition.leader_epoch:
        return NO_EPOCH, NO_OFFSET
    history = partition.log.epochs
    is_older = epoch <= history.first or history.first == NO_EPOCH
    if is_older and partition.log_start_offset < partition.log.log_start_offset:
        history = await partition.epochs()  # the store has what is older
    found, end_offset = history.end_offset(epoch, partition.log_end_offset)
    # Older than every epoch in this log: nothing the client has read in it is here.
    return (found, end_offset) if found != NO_EPOCH else (epoch, partition.log_start_offset)


def _result(partition: int, code: ErrorCode, epoch: int, end_offset: int) -> dict[str, Any]:
    return {"partition": partition, "error_code": code, "leader_epoch": epoch, "end_offset": end_offset}
