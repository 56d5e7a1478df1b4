"""Topics as Metadata answers describe them, kept as bytes.

Every client asks for the same topics again and again, and all of them at once after a change; to describe and
encode 50,000 partitions takes a quarter of a second. Answers of the same version have the same bytes for a
topic, whoever asks: what a client may see decides which topics are in the answer, and its rights over a topic
are part of the key.

A topic and its partitions are values that are replaced and never altered, so bytes hold while the state has
the same topic, and the same brokers are alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from chronik.metadata.state import ClusterState
from chronik.metadata.values import PartitionRegistration, Topic
from chronik.model import NO_LEADER, ErrorCode, NodeId, is_internal_topic
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_element
from chronik.wire.writing import Encoded

__all__ = ["TopicAnswers", "describe_partition", "describe_topic"]

KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
ENTRY_BYTES: Final = 300
"""What keeping one costs besides its bytes."""


class TopicAnswers:
    """The newest of them, up to `KEPT_BYTES_MAX`."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int], tuple[Topic, Encoded]] = {}
        """By topic, version and authorized operations; the oldest first."""
        self._alive: frozenset[NodeId] = frozenset()
        self.kept_bytes = 0

    def encoded(
        self, state: ClusterState, version: int, wanted: Iterable[tuple[Topic, int]]
    ) -> list[Encoded]:
        """Topics, each with its authorized operations, as elements of a Metadata response of this version."""
        alive = frozenset(broker_id for broker_id, broker in state.brokers.items() if not broker.fenced)
        if alive != self._alive:
            self._kept.clear()
            self._alive, self.kept_bytes = alive, 0
        return [self._encoded(state, topic, version, operations) for topic, operations in wanted]

    def _encoded(self, state: ClusterState, topic: Topic, version: int, operations: int) -> Encoded:
        key = topic.name, version, operations
        known = self._kept.get(key)
        if known is not None:
            if known[0] is topic:
                return known[1]
            self._forget(key)
        fields = describe_topic(state, topic, operations)
        answer = encode_element(ApiKey.METADATA, version, "topics", fields)
        if _cost(answer) <= KEPT_BYTES_MAX:
            self._kept[key] = topic, answer
            self.kept_bytes += _cost(answer)
            while self.kept_bytes > KEPT_BYTES_MAX:
                self._forget(next(iter(self._kept)))
        return answer

    def _forget(self, key: tuple[str, int, int]) -> None:
        _, answer = self._kept.pop(key)
        self.kept_bytes -= _cost(answer)


def _cost(answer: Encoded) -> int:
    return len(answer) + ENTRY_BYTES


def describe_topic(state: ClusterState, topic: Topic, operations: int) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal_topic(topic.name),
        "partitions": [describe_partition(state, partition) for partition in topic.partitions],
        "topic_authorized_operations": operations,
    }


def describe_partition(state: ClusterState, partition: PartitionRegistration) -> dict[str, Any]:
    leaderless = partition.leader == NO_LEADER
    return {
        "error_code": ErrorCode.leader_not_available if leaderless else ErrorCode.none,
        "partition_index": partition.partition,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [id for id in partition.replicas if not state.is_alive(id)],
    }
