"""Topics as Metadata answers describe them, kept as bytes.

Every client asks for the same topics again and again, and all of them at once after a change; to describe and
encode 50,000 partitions takes a quarter of a second. Answers of the same layout have the same bytes for a
topic, whoever asks: what a client may see decides which topics are in the answer, and its rights over a topic
are part of the key.

A topic and its partitions are values that are replaced and never altered, so bytes hold while the state has
the same topic, and the same brokers are alive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

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
PATIENCE: Final = 8
"""An entry is dropped for others only after this many calls that needed room and did not use it."""
LOOKED_AT_MORE: Final = 16
"""To find entries to drop, a call looks at twice as many as it misses, and at this many more."""
LAYOUTS: Final = (0, 1, 5, 7, 8, 9, 10)
"""Versions that changed how a topic is encoded; the others are as the one before."""
_NOTHING: Final = Encoded()

_Key: TypeAlias = tuple[str, int, int]


class _Kept:
    __slots__ = ("answer", "call", "patience", "topic")

    def __init__(self, topic: Topic, answer: Encoded, call: int) -> None:
        self.topic = topic
        self.answer = answer
        self.call = call
        """The last one that used it."""
        self.patience = PATIENCE


class TopicAnswers:
    """A cache of up to `KEPT_BYTES_MAX`.

    Entries that a call uses are never dropped for entries that the same call adds. Otherwise requests for all
    topics, always in the same order, would find nothing as soon as one topic did not fit. Entries that a call
    does not use are dropped only after `PATIENCE` such calls. Otherwise clients of two layouts, or with
    different rights, that ask in turn would drop each other's entries for ever.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        """Answers by topic, layout and authorized operations; least recently used first."""
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
        layout = LAYOUTS[bisect_right(LAYOUTS, version) - 1]
        for topic, operations in wanted:
            key = topic.name, layout, operations
            known = kept.get(key)
            if known is None or known.topic is not topic:
                missing.append((len(answers), topic, operations))
                answers.append(_NOTHING)
                continue
            if known.call != call:
                known.call, known.patience = call, PATIENCE
                kept.move_to_end(key)
            answers.append(known.answer)
        # Only now: everything that this call uses is marked, so none of it goes to make room.
        if missing:
            unused = self._unused(2 * len(missing) + LOOKED_AT_MORE)
            for place, topic, operations in missing:
                fields = describe_topic(state, topic, operations)
                answer = encode_element(ApiKey.METADATA, layout, "topics", fields)
                self._keep((topic.name, layout, operations), _Kept(topic, answer, call), unused)
                answers[place] = answer
        return answers

    def _unused(self, count: int) -> Iterator[_Key]:
        """The longest unused entries that may be dropped for this call, found as they are needed."""
        for key in list(islice(self._kept, count)):
            found = self._kept.get(key)
            if found is None or found.call == self._call:
                continue
            if found.patience:
                found.patience -= 1
            else:
                yield key

    def _keep(self, key: _Key, new: _Kept, unused: Iterator[_Key]) -> None:
        self._forget(key)  # as the topic was before, or it is asked for twice
        size = _cost(new.answer)
        while self.kept_bytes + size > KEPT_BYTES_MAX:
            longest_unused = next(unused, None)
            if longest_unused is None:
                return
            self._forget(longest_unused)
        self._kept[key] = new
        self.kept_bytes += size

    def _forget(self, key: _Key) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self.kept_bytes -= _cost(gone.answer)


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
