"""Which micro-batches a sink has decided to commit: the memory that makes a re-run add nothing twice.

The transactions of a micro-batch's tasks cannot be committed in one step. So the driver first writes down
that the batch is decided, with the transactions it consists of, and only then commits them one by one. A
re-run after a crash finds the decision: its tasks write nothing, and the driver commits what is left. A
crash before the decision leaves only open transactions, which the re-run fences and so aborts.

The decision is a committed offset: group `chronik-sink-<sink>`, offset = batch id, metadata = the
transactions. Metadata is short (Kafka takes 4,096 bytes), so further parts lie in groups with a number
behind the name, written before the first, which alone makes the decision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chronik.client import Cluster
from chronik.client.groups import Groups
from chronik.model import TopicPartition
from chronik.spark.producing import OpenTransaction

PART_CHARACTERS_MAX: Final = 4000


@dataclass(frozen=True, slots=True)
class SinkDecision:
    batch_id: int
    transactions: tuple[OpenTransaction, ...]


def group_name(sink_id: str, part: int) -> str:
    return f"chronik-sink-{sink_id}" + (f"-{part}" if part else "")


def encode(decision: SinkDecision) -> list[str]:
    """The decision in parts, each short enough for one group's metadata."""
    transactions = [[t.transactional_id, t.producer_id, t.producer_epoch] for t in decision.transactions]
    text = json.dumps(transactions, separators=(",", ":"))
    parts = [text[at : at + PART_CHARACTERS_MAX] for at in range(0, len(text), PART_CHARACTERS_MAX)]
    return [f"{len(parts)};{parts[0]}", *parts[1:]]


def decode(batch_id: int, parts: Sequence[str]) -> SinkDecision:
    text = parts[0].partition(";")[2] + "".join(parts[1:])
    return SinkDecision(batch_id, tuple(OpenTransaction(*each) for each in json.loads(text)))


def part_count(first: str) -> int:
    return int(first.partition(";")[0])


class Ledger:
    """The decisions of one sink, kept under a topic that the sink writes to."""

    def __init__(self, cluster: Cluster, sink_id: str, topic: str) -> None:
        self._groups = Groups(cluster)
        self._sink_id = sink_id
        self._tp = TopicPartition(topic, 0)

    async def last(self) -> SinkDecision | None:
        first = (await self._groups.offsets(group_name(self._sink_id, 0))).get(self._tp)
        if first is None or first.offset < 0:
            return None
        parts = [first.metadata]
        for part in range(1, part_count(first.metadata)):
            found = await self._groups.offsets(group_name(self._sink_id, part))
            parts.append(found[self._tp].metadata)
        return decode(first.offset, parts)

    async def decide(self, decision: SinkDecision) -> None:
        parts = encode(decision)
        for number in reversed(range(len(parts))):
            await self._groups.commit(
                group_name(self._sink_id, number), {self._tp: decision.batch_id}, metadata=parts[number]
            )
