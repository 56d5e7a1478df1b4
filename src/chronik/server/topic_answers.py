"""Topics as Metadata answers describe them, kept as bytes.

Every client asks for the same topics again and again, and all of them at once after a change; to describe and
encode 50,000 partitions takes a quarter of a second. Answers of the same version have the same bytes for a
topic, whoever asks: what a client may see decides which topics are in the answer, and its rights over a topic
are part of the key.

A topic and its partitions are values that are replaced and never altered, so bytes hold while the state has
the same topic, and the same brokers are alive.
"""

from __future__ import annotations

from collections import OrderedDict
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
_NOTHING: Final = Encoded()


class _Kept:
    __slots__ = ("answer", "call", "topic")

    def __init__(self, topic: Topic, answer: Encoded, call: int) -> None:
        self.topic = topic
        self.answer = answer
        self.call = call
        """The last one that used it."""


class TopicAnswers:
    """Those that were used last, up to `KEPT_BYTES_MAX`.

    What a call uses never gives way to what the same call adds: else requests for all topics, always in the
    same order, would find nothing any more as soon as one topic did not fit.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, int], _Kept] = OrderedDict()
        """By topic, version and authorized operations; the longest unused first."""
        self._call = 0
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
        self._call = call = self._call + 1
        kept, answers = self._kept, list[Encoded]()
        missing: list[tuple[int, Topic, int]] = []
        for topic, operations in wanted:
            key = topic.name, version, operations
            known = kept.get(key)
            if known is None or known.topic is not topic:
                missing.append((len(answers), topic, operations))
                answers.append(_NOTHING)
                continue
            if known.call != call:
                known.call = call
                kept.move_to_end(key)
            answers.append(known.answer)
        # Only now: everything that this call uses is marked, so none of it goes to make room.
        for place, topic, operations in missing:
            answers[place] = self._made(state, topic, version, operations)
        return answers

    def _made(self, state: ClusterState, topic: Topic, version: int, operations: int) -> Encoded:
        fields = describe_topic(state, topic, operations)
        answer = encode_element(ApiKey.METADATA, version, "topics", fields)
        key = topic.name, version, operations
        if key in self._kept:  # as the topic was before, or it is asked for twice
            self._forget(key)
        if self._makes_room(_cost(answer)):
            self._kept[key] = _Kept(topic, answer, self._call)
            self.kept_bytes += _cost(answer)
        return answer

    def _makes_room(self, size: int) -> bool:
        while self.kept_bytes + size > KEPT_BYTES_MAX:
            longest_unused = next(iter(self._kept.items()), None)
            if longest_unused is None or longest_unused[1].call == self._call:
                return False
            self._forget(longest_unused[0])
        return True

    def _forget(self, key: tuple[str, int, int]) -> None:
        self.kept_bytes -= _cost(self._kept.pop(key).answer)


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
