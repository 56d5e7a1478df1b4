"""Ranges of offsets: how they are cut into tasks and capped per trigger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from chronik.model import TopicPartition

RANGE_OFFSETS_MIN: Final = 50_000
"""Shorter ranges are not cut for parallelism: a task costs more than it saves."""


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
