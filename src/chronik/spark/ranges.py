"""Ranges of offsets: how they are cut into tasks, capped per trigger and narrowed by filters. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from chronik.model import TopicPartition

RANGE_OFFSETS_MIN: Final = 50_000
"""Shorter ranges are not cut for parallelism: a task costs more than it saves."""
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, `end` left out."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


def split(ranges: Iterable[OffsetRange], tasks: int, smallest: int = RANGE_OFFSETS_MIN) -> list[OffsetRange]:
    """The same offsets in about as many ranges as there should be tasks, in order, none empty.

    Each range gets pieces by its share of all offsets, so that every core has work for about the same time.
    """
    whole = [each for each in ranges if each.size]
    total = sum(each.size for each in whole)
    if not total:
        return []
    pieces: list[OffsetRange] = []
    for each in whole:
        count = max(1, round(each.size * tasks / total))
        count = max(1, min(count, each.size // max(1, smallest), each.size))
        borders = [each.start + each.size * number // count for number in range(count + 1)]
        pieces += (OffsetRange(each.tp, borders[number], borders[number + 1]) for number in range(count))
    return pieces


def cap(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int | None
) -> dict[TopicPartition, int]:
    """Ends at most `limit` offsets from the starts, shared out by how much each partition has."""
    sizes = {tp: max(0, end[tp] - start.get(tp, end[tp])) for tp in end}
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return dict(end)
    capped: dict[TopicPartition, int] = {}
    before = taken = 0
    for tp in sorted(end):
        # Shares are rounded along the running sum, so that they add up to the limit exactly.
        before += sizes[tp]
        share = before * limit // total - taken
        taken += share
        capped[tp] = start.get(tp, end[tp]) + share if sizes[tp] else end[tp]
    return capped


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """What is left to read once filters are pushed down. None: no bound, or any."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_min: int = 0
    partition_max: int = 2**31 - 1
    offset_min: int = 0
    offset_max: int = 2**63 - 1
    timestamp_ms_min: int = -(2**63)
    timestamp_ms_max: int = 2**63 - 1

    def admits(self, tp: TopicPartition) -> bool:
        return (
            (self.topics is None or tp.topic in self.topics)
            and (self.partitions is None or tp.partition in self.partitions)
            and self.partition_min <= tp.partition <= self.partition_max
        )

    def clip(self, each: OffsetRange) -> OffsetRange:
        start = max(each.start, self.offset_min)
        end = min(each.end, self.offset_max + 1)
        return OffsetRange(each.tp, start, max(start, end))

    def with_filter(self, kind: str, column: str, value: Any) -> Narrowed | None:
        """Narrowed further by a filter of Spark's, named by its class; None: cannot be used."""
        if kind == "IsNotNull" and column in _NEVER_NULL:
            return self
        if column == "topic" and kind in ("EqualTo", "EqualNullSafe", "In"):
            names = _values(kind, value, str)
            return None if names is None else replace(self, topics=_both(self.topics, names))
        if column == "partition" and kind in ("EqualTo", "EqualNullSafe", "In"):
            numbers = _values(kind, value, int)
            return None if numbers is None else replace(self, partitions=_both(self.partitions, numbers))
        bounds = _bounds(kind, _number(column, value, kind))
        if bounds is None or column not in _BOUNDED:
            return None
        low, high = bounds
        low_name, high_name = _BOUNDED[column]
        changes = {
            low_name: max(getattr(self, low_name), low if low is not None else -(2**63)),
            high_name: min(getattr(self, high_name), high if high is not None else 2**63 - 1),
        }
        return replace(self, **changes)


_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_BOUNDED: Final[Mapping[str, tuple[str, str]]] = {
    "partition": ("partition_min", "partition_max"),
    "offset": ("offset_min", "offset_max"),
    "timestamp": ("timestamp_ms_min", "timestamp_ms_max"),
}
EXACT_COLUMNS: Final = frozenset({"topic", "partition", "offset"})
"""Filters on these leave nothing for Spark to check; times are narrowed to whole milliseconds only."""


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def _values(kind: str, value: Any, wanted: type) -> frozenset[Any] | None:
    items: Sequence[Any] = tuple(value) if kind == "In" and isinstance(value, (list, tuple)) else (value,)
    # A null in a list never matches; alone, it matches nothing that we have.
    found = [item for item in items if item is not None]
    return frozenset(found) if all(isinstance(item, wanted) for item in found) else None


def _number(column: str, value: Any, kind: str) -> int | None:
    if column == "timestamp":
        if not isinstance(value, datetime.datetime):
            return None
        aware = value if value.tzinfo is not None else value.astimezone()
        micros = (aware - EPOCH) // datetime.timedelta(microseconds=1)
        # Rounded outwards: Spark checks the exact time again.
        return micros // 1000 if kind.startswith("Greater") or kind == "EqualTo" else -(-micros // 1000)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bounds(kind: str, value: int | None) -> tuple[int | None, int | None] | None:
    if value is None:
        return None
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return value, value
        case "GreaterThan":
            return value + 1, None
        case "GreaterThanOrEqual":
            return value, None
        case "LessThan":
            return None, value - 1
        case "LessThanOrEqual":
            return None, value
    return None
