"""How far MirrorMaker has come, by what it writes into its own topics on the new side.

Connect stores there, with each of its transactions, up to which offset of the old side a partition is copied,
and when a connector or one of its tasks fails. Both are exact and outlive the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chronik.cli.migrate_config import OFFSETS_TOPIC, OLD, STATUS_TOPIC
from chronik.model import TopicPartition

if TYPE_CHECKING:
    from chronik.client import Cluster

_SOURCE: Final = "MirrorSourceConnector"
_STATUS: Final = "status-"
_FAILED: Final = "FAILED"
_REASON_CHARS: Final = 300
_LOOK_BYTES: Final = 64 << 10
_LOOK_MS: Final = 2_000


@dataclass(slots=True)
class MirrorState:
    """What the topics said so far; `take` is pure."""

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """The offset on the old side behind what is copied."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by connector or task."""

    def take(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """One record of MirrorMaker's topics; what cannot be read says nothing."""
        try:
            if topic == STATUS_TOPIC:
                self._take_status((key or b"").decode(), json.loads(value) if value else None)
            elif topic == OFFSETS_TOPIC:
                self._take_position(json.loads(key or b"null"), json.loads(value) if value else None)
        except (ValueError, TypeError, KeyError, AttributeError):
            return

    def _take_position(self, key: Any, value: Any) -> None:
        connector, partition = key
        if connector != _SOURCE or partition["cluster"] != OLD or value is None:
            return
        tp = TopicPartition(str(partition["topic"]), int(partition["partition"]))
        self.positions[tp] = int(value["offset"]) + 1

    def _take_status(self, key: str, value: Any) -> None:
        if not key.startswith(_STATUS):
            return
        name = key.removeprefix(_STATUS)
        if value is not None and value["state"] == _FAILED:
            self.failed[name] = _reason(str(value.get("trace") or "no reason given"))
        else:
            self.failed.pop(name, None)


def _reason(trace: str) -> str:
    """The innermost cause of a Java stack trace."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by:").strip() for line in lines if line.startswith("Caused by:")]
    return (causes or lines)[-1 if causes else 0][:_REASON_CHARS]


class MirrorWatch:
    """Reads MirrorMaker's topics as they grow. Their few records are read anew by each process."""

    def __init__(self, new: Cluster) -> None:
        self._new = new
        self._read: dict[TopicPartition, int] = {}
        self.state = MirrorState()

    async def look(self) -> MirrorState:
        from chronik.client import Consumer, FetchOptions
        from chronik.client.offsets import EARLIEST, LATEST, list_offsets

        known = await self._new.topics()
        tps = [
            TopicPartition(name, number)
            for name in (OFFSETS_TOPIC, STATUS_TOPIC)
            if name in known
            for number in known[name].partitions
        ]
        ends = await list_offsets(self._new, dict.fromkeys(tps, LATEST), read_committed=True)
        if fresh := [tp for tp in tps if tp not in self._read]:
            starts = await list_offsets(self._new, dict.fromkeys(fresh, EARLIEST))
            self._read |= {tp: starts[tp].offset for tp in fresh}
        until = {tp: end.offset for tp, end in ends.items() if end.offset > self._read[tp]}
        if until:
            options = FetchOptions(read_committed=True, max_wait_ms=100)
            async with Consumer(self._new, options, on_out_of_range="earliest") as consumer:
                consumer.assign({tp: self._read[tp] for tp in until})
                async for one in consumer.records(until):
                    self.state.take(one.tp.topic, one.record.key, one.record.value)
                self._read |= {tp: consumer.position(tp) for tp in until}
        return self.state


@dataclass(frozen=True, slots=True)
class MirrorLag:
    """What of the old side is copied, in offsets."""

    size: Mapping[TopicPartition, int]
    left: Mapping[TopicPartition, int]

    @property
    def total(self) -> int:
        return sum(self.size.values())

    @property
    def copied(self) -> int:
        return self.total - sum(self.left.values())

    @property
    def is_none(self) -> bool:
        return not any(self.left.values())

    def by_topic(self) -> dict[str, int]:
        return _by_topic(self.left)

    def sizes(self) -> dict[str, int]:
        return _by_topic(self.size)


def _by_topic(counts: Mapping[TopicPartition, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tp, count in counts.items():
        found[tp.topic] = found.get(tp.topic, 0) + count
    return found


async def lag_of(
    old: Cluster, tps: list[TopicPartition], positions: Mapping[TopicPartition, int]
) -> MirrorLag:
    """Compare positions with where the old side's committed records end now.

    The last offsets of a log may be marks of transactions, or aborted records: nobody copies those.
    """
    from chronik.client.offsets import EARLIEST, LATEST, list_offsets

    ends = await list_offsets(old, dict.fromkeys(tps, LATEST), read_committed=True)
    starts = await list_offsets(old, dict.fromkeys(tps, EARLIEST))
    at = {tp: max(positions.get(tp, 0), starts[tp].offset) for tp in tps}
    left = {tp: max(0, ends[tp].offset - at[tp]) for tp in tps}
    behind = {tp: at[tp] for tp, count in left.items() if count}
    for tp in await _without_records(old, behind, {tp: ends[tp].offset for tp in behind}):
        left[tp] = 0
    return MirrorLag({tp: max(0, ends[tp].offset - starts[tp].offset) for tp in tps}, left)


async def _without_records(
    old: Cluster, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> set[TopicPartition]:
    """The partitions that have no committed record between their position and their end."""
    from chronik.client import Consumer, FetchOptions

    empty: set[TopicPartition] = set()
    unknown = set(positions)
    options = FetchOptions(read_committed=True, max_wait_ms=100, partition_max_bytes=_LOOK_BYTES)
    async with Consumer(old, options, on_out_of_range="earliest") as consumer:
        consumer.assign(positions)
        while unknown:
            parts = await consumer.poll(_LOOK_MS)
            if not parts:  # offsets without records at all, which compaction has removed
                return empty | unknown
            for part in parts:
                has_records = any(part.rows(lambda _: None))
                if has_records or part.next_offset >= ends[part.tp]:
                    unknown.discard(part.tp)
                    consumer.pause(part.tp)
                    if not has_records:
                        empty.add(part.tp)
    return empty
