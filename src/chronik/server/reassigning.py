"""Moves of replicas that somebody asks for: what is checked before the controller gets the command."""

from __future__ import annotations

from chronik.metadata.commands import Reassign
from chronik.metadata.reassignment import original_of
from chronik.metadata.state import ClusterState
from chronik.model import ErrorCode, RequestError, TopicPartition

__all__ = ["plan_reassignment"]


def plan_reassignment(
    state: ClusterState, tp: TopicPartition, target: tuple[int, ...] | None, *, may_resize: bool
) -> Reassign:
    """The command that moves a partition to these nodes; None as target gives a move up."""
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
