"""AlterPartitionReassignments: move replicas, or give a move up (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.metadata.commands import Reassign
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.server.reassigning import plan_reassignment
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), needs=on_cluster(Operation.ALTER))
async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, ctx: RequestContext
) -> Reply:
    """Answers when the moves have begun; ListPartitionReassignments tells how they go on."""
    may_resize = request.allow_replication_factor_change
    state = ctx.services.state
    results: dict[TopicPartition, tuple[ErrorCode, str | None]] = {}
    planned: list[tuple[TopicPartition, Reassign]] = []
    for topic in request.topics:
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition_index)
            try:
                planned.append((tp, plan_reassignment(state, tp, one.replicas, may_resize=may_resize)))
                results[tp] = ErrorCode.none, None
            except RequestError as error:
                results[tp] = error.code, error.message
    timeout_s = max(0.0, request.timeout.total_seconds())
    for tp, refused in await ctx.services.metadata.submit_each(planned, timeout_s=timeout_s):
        results[tp] = refused.code, refused.message
    topics: dict[str, list[dict[str, Any]]] = {topic.name: [] for topic in request.topics}
    for tp, (code, message) in results.items():
        topics[tp.topic].append(
            {"partition_index": tp.partition, "error_code": code, "error_message": message}
        )
    return reply(
        allow_replication_factor_change=may_resize,
        error_code=ErrorCode.none,
        responses=[{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    )
