"""AlterPartitionReassignments: move replicas, or give a move up (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.metadata.commands import Batch, Reassign
from chronik.metadata.reassignment import original_of
from chronik.metadata.state import ClusterState
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
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
                planned.append((tp, _plan(state, tp, one.replicas, may_resize=may_resize)))
                results[tp] = ErrorCode.none, None
            except RequestError as error:
                results[tp] = error.code, error.message
    if planned:
        batch = Batch(commands=tuple(command for _, command in planned))
        timeout_s = max(0.0, request.timeout.total_seconds())
        outcome = await ctx.services.metadata.submit(batch, timeout_s=timeout_s)
        for (tp, _), part in zip(planned, outcome.parts, strict=True):
            if part.refused is not None:
                results[tp] = part.refused.code, part.refused.message
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


def _plan(
    state: ClusterState, tp: TopicPartition, target: tuple[int, ...] | None, *, may_resize: bool
) -> Reassign:
    topic, partition = state.topics.get(tp.topic), state.partition(tp)
    if topic is None or partition is None:
        raise RequestError(
            ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
        )
    if target is not None and not may_resize and len(target) != len(original_of(partition)):
        raise RequestError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is {len(original_of(partition))} and may not become {len(target)}.",
        )
    return Reassign(
        topic_id=topic.topic_id, partition=tp.partition, target=None if target is None else tuple(target)
    )
