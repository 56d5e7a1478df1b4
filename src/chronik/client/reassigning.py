"""Moves of replicas: begun, given up, looked at (KIP-455)."""

from __future__ import annotations

from collections.abc import Mapping

from chronik.client.apis import ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS
from chronik.client.cluster import Cluster
from chronik.client.offsets import by_topic, raise_worst
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition

__all__ = ["alter_reassignments", "list_reassignments"]


async def alter_reassignments(
    cluster: Cluster, targets: Mapping[TopicPartition, tuple[NodeId, ...] | None]
) -> None:
    """Begin moves, preferred leader first; None gives one up. Raises the worst of what was refused."""
    fields = {
        "timeout": cluster.options.request_timeout_ms,
        "topics": [
            {
                "name": topic,
                "partitions": [{"partition_index": tp.partition, "replicas": targets[tp]} for tp in tps],
            }
            for topic, tps in by_topic(targets).items()
        ],
    }
    answer = await cluster.retry().run(lambda: cluster.send_controller(ALTER_PARTITION_REASSIGNMENTS, fields))
    if answer.error_code != ErrorCode.none:
        raise RequestError(answer.error_code, answer.error_message)
    raise_worst(
        RequestError(one.error_code, f"{topic.name}-{one.partition_index}: {one.error_message}")
        for topic in answer.responses
        for one in topic.partitions
        if one.error_code != ErrorCode.none
    )


async def list_reassignments(cluster: Cluster) -> dict[TopicPartition, tuple[NodeId, ...]]:
    """The replicas, old and new, of each partition that is on the move."""
    fields = {"timeout": cluster.options.request_timeout_ms, "topics": None}
    answer = await cluster.retry().run(lambda: cluster.send_controller(LIST_PARTITION_REASSIGNMENTS, fields))
    if answer.error_code != ErrorCode.none:
        raise RequestError(answer.error_code, answer.error_message)
    return {
        TopicPartition(topic.name, one.partition_index): tuple(one.replicas)
        for topic in answer.topics
        for one in topic.partitions
    }
