"""ListOffsets: earliest, latest, by timestamp, and of the latest timestamp."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from chronik.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, ErrorCode, RequestError, TopicPartition
from chronik.replication.partition import Partition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import each_topic
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_SINCE_VERSION: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
CONSUMER: Final = -1
DEBUGGER: Final = -2
"""Replica id of a debug client: it is answered by any replica, leader or not."""

_READ_COMMITTED: Final = 1
_OFFSET_NOT_AVAILABLE_SINCE: Final = 5
_NOTHING: Final = (NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


def _on_error(request: ListOffsetsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(
        topics=[
            {
                "name": topic.name,
                "partitions": [_result(one.partition_index, code, _NOTHING) for one in topic.partitions],
            }
            for topic in request.topics
        ]
    )


@handles(
    ApiKey.LIST_OFFSETS,
    versions=(1, 11),
    needs=each_topic(Operation.DESCRIBE),
    on_error=_on_error,
    unavailable=ErrorCode.not_leader_or_follower,
)
async def list_offsets(request: ListOffsetsRequest, ctx: RequestContext) -> Reply:
    counts = Counter(
        (topic.name, one.partition_index) for topic in request.topics for one in topic.partitions
    )
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            if counts[topic.name, one.partition_index] > 1:
                partitions.append(_result(one.partition_index, ErrorCode.invalid_request, _NOTHING))
            else:
                partitions.append(await _answer(request, ctx, topic.name, one))
        topics.append({"name": topic.name, "partitions": partitions})
    return reply(topics=topics)


async def _answer(
    request: ListOffsetsRequest, ctx: RequestContext, topic: str, wanted: ListOffsetsPartition
) -> dict[str, Any]:
    try:
        if (
            ctx.api_version < _SINCE_VERSION.get(wanted.timestamp, 0)
            or wanted.timestamp < EARLIEST_PENDING_UPLOAD
        ):
            raise RequestError(ErrorCode.unsupported_version)
        replicas, tp = ctx.services.replicas, TopicPartition(topic, wanted.partition_index)
        partition = replicas.replica(tp) if request.replica_id == DEBUGGER else replicas.leader(tp)
        partition.check_epoch(wanted.current_leader_epoch)
        found = await _find(partition, wanted.timestamp, _readable_end(request, partition))
    except Exception as error:
        code, _ = error_of(error, ErrorCode.not_leader_or_follower)
        if code == ErrorCode.offset_not_available and ctx.api_version < _OFFSET_NOT_AVAILABLE_SINCE:
            code = ErrorCode.leader_not_available
        return _result(wanted.partition_index, code, _NOTHING)
    return _result(wanted.partition_index, ErrorCode.none, found)


def _readable_end(request: ListOffsetsRequest, partition: Partition) -> int:
    if request.replica_id != CONSUMER:
        return partition.log_end_offset
    if request.isolation_level == _READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


async def _find(partition: Partition, timestamp: int, end: int) -> tuple[int, int, int]:
    """Offset, timestamp and leader epoch. Records from `end` on are not considered."""
    if partition.high_watermark < partition.leader_epoch_start_offset and timestamp not in (
        EARLIEST,
        EARLIEST_LOCAL,
    ):
        # A new leader does not know yet how far its predecessor had committed (KIP-207).
        raise RequestError(ErrorCode.offset_not_available, "the leader is new and not caught up yet")
    if timestamp == LATEST:
        return end, NO_TIMESTAMP, partition.leader_epoch
    if timestamp == EARLIEST:
        return await _at(partition, partition.log_start_offset)
    if timestamp == EARLIEST_LOCAL:
        return await _at(partition, partition.log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        remote = partition.remote
        if not partition.is_tiered or (remote is None and timestamp == LATEST_TIERED):
            return _NOTHING
        if remote is None:
            return await _at(partition, partition.log_start_offset)
        return await _at(partition, remote.end_offset - (timestamp == LATEST_TIERED))
    if timestamp == MAX_TIMESTAMP:
        found = await partition.offset_of_max_timestamp()
    else:
        found = await partition.offset_for_timestamp(timestamp)
    return found if found is not None and found[0] < end else _NOTHING


async def _at(partition: Partition, offset: int) -> tuple[int, int, int]:
    """The answer for an offset, with the leader epoch of the record there, or of the next one if it is yet to
    be written."""
    if offset >= partition.log_end_offset:
        return offset, NO_TIMESTAMP, partition.leader_epoch
    if offset >= partition.log.log_start_offset:
        return offset, NO_TIMESTAMP, partition.log.epochs.epoch_of(offset)
    return offset, NO_TIMESTAMP, (await partition.epochs()).epoch_of(offset)


def _result(partition: int, code: ErrorCode, found: tuple[int, int, int]) -> dict[str, Any]:
    offset, timestamp, leader_epoch = found
    return {
        "partition_index": partition,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }
