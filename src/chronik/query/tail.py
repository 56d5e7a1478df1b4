"""The youngest records: what was read of a partition's log and is not in its index yet.

They are kept as they came, which costs next to nothing. A search looks through them for records that its
query may find, and gives up if that takes too long or finds too many: the index will have them soon.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from chronik.client import Fetched
from chronik.client.visibility import visible_batches
from chronik.model import RequestError
from chronik.query.conditions import ANYTHING, Condition, Piece, condition_of
from chronik.records.batch import BatchHeader, check_batch
from chronik.records.body import body_of
from chronik.records.reader import Row, read_rows

__all__ = ["ROWS_MAX", "Chosen", "FetchedBatch", "Fresh", "Tail", "choose", "fresh"]

ROWS_MAX: Final = 20_000
"""Most records that are indexed for one search only."""
SECONDS_MAX: Final = 2.0
CLOCK_ROWS: Final = 1_000
"""Records between two looks at the clock."""
_EARLIEST: Final = -(2**63)
_INT64: Final = range(-(2**63), 2**63)

Rows: TypeAlias = dict[int, list[Row]]
"""Rows by partition."""


class Tail:
    """Fetched parts of one partition, in order. Only one thread changes it; any may read `parts`."""

    def __init__(self, position: int) -> None:
        self.position = position
        """Offset behind the last record that was read."""
        self.parts: tuple[Fetched, ...] = ()
        self.size_bytes = 0

    def add(self, part: Fetched) -> None:
        self.parts += (part,)
        self.size_bytes += len(part.data)
        self.skip_to(part.next_offset)

    def skip_to(self, offset: int) -> None:
        """The log starts here now: nothing before it will be read."""
        self.position = max(self.position, offset)

    def drop(self, before_offset: int) -> None:
        """Drop parts that are indexed."""
        self.parts = tuple(part for part in self.parts if part.next_offset > before_offset)
        self.size_bytes = sum(len(part.data) for part in self.parts)

    def next_part(self, position: int) -> Fetched | None:
        """The part to index next. It may begin after `position` if the log start has moved."""
        return next((part for part in self.parts if part.next_offset > position), None)


class FetchedBatch(NamedTuple):
    part: Fetched
    position: int
    header: BatchHeader
    first_offset: int
    """Records before are not to be seen."""

    def rows(self) -> Iterator[Row]:
        """None of a batch that cannot be read: it is counted when it is indexed."""
        try:
            check_batch(self.part.data, self.position)
            rows = read_rows(self.part.data, self.position)
        except RequestError:
            return
        end = self.header.next_offset
        for row in rows:
            if self.first_offset <= row[0] < end and row[1] in _INT64:
                yield row

    def records(self) -> int:
        is_whole = self.header.base_offset >= self.first_offset
        return self.header.record_count if is_whole else sum(1 for _ in self.rows())

    def piece(self) -> Piece | None:
        """All of it; None if it cannot be read."""
        header = self.header
        try:
            data = body_of(header, self.part.data, self.position).lower()
        except RequestError:
            return None
        return Piece(
            data,
            self.part.tp.partition,
            (header.base_offset, header.last_offset),
            (_EARLIEST, header.max_timestamp),
            is_batch=True,
        )


Fresh: TypeAlias = Mapping[int, Sequence[FetchedBatch]]
"""The batches that no index has, by partition, in order."""


def fresh(parts: Sequence[Fetched], first_offset: int) -> list[FetchedBatch]:
    """Batches with visible records at or after this offset."""
    found = []
    for part in parts:
        first = max(first_offset, part.fetch_offset)
        for position, header in visible_batches(part.data, part.aborted):
            if header.last_offset >= first and header.record_count:
                found.append(FetchedBatch(part, position, header, first))
    return found


class Chosen(NamedTuple):
    rows: Rows
    """Records that may match. For match_all, only those that can be among the hits shown."""
    total: int | None
    """Number of matches, if it is known without a search."""


def choose(
    batches: Fresh, query: Any, limit: int, *, order: str | None, ascending: bool, by_value: bool
) -> Chosen | None:
    """The records to search, or None if they are too many. `order` is None to sort by score."""
    deadline = time.monotonic() + SECONDS_MAX
    if "match_all" in query and not by_value and (order != "_timestamp" or not ascending):
        rows = {number: _ends(own, limit, order, ascending) for number, own in batches.items()}
        return Chosen(rows, sum(batch.records() for own in batches.values() for batch in own))
    condition = condition_of(query)
    if (
        condition == ANYTHING
        and sum(batch.header.record_count for own in batches.values() for batch in own) > ROWS_MAX
    ):
        return None
    chosen: Rows = {}
    left = ROWS_MAX
    for number, own in batches.items():
        chosen[number] = []
        for batch in own:
            for row in _candidates(batch, condition):
                if row is not None:
                    chosen[number].append(row)
                    left -= 1
                if left < 0 or time.monotonic() > deadline:
                    return None
    return Chosen(chosen, None)


def _candidates(batch: FetchedBatch, condition: Condition) -> Iterator[Row | None]:
    """Records that may match; None now and then, so that who waits can look at the clock."""
    if condition == ANYTHING:
        yield from batch.rows()
    elif _may_hold(batch, condition):
        number = batch.part.tp.partition
        for place, row in enumerate(batch.rows(), 1):
            offset, timestamp_ms, key, value, _ = row
            text = b"%b\n%b" % (key or b"", value or b"")
            if condition.holds(Piece(text.lower(), number, (offset, offset), (timestamp_ms, timestamp_ms))):
                yield row
            elif place % CLOCK_ROWS == 0:
                yield None
    yield None


def _may_hold(batch: FetchedBatch, condition: Condition) -> bool:
    """A separate function, so that the decompressed batch is freed before its records are decoded."""
    piece = batch.piece()
    return piece is not None and condition.holds(piece)


def _ends(batches: Sequence[FetchedBatch], limit: int, order: str | None, ascending: bool) -> list[Row]:
    """The first rows in this order, of all that there are. Only batches that can hold them are read."""
    if not limit:
        return []
    by_time = order == "_timestamp"
    from_behind = by_time or (order == "_offset" and not ascending)
    if by_time:
        batches = sorted(batches, key=lambda batch: batch.header.max_timestamp)
    rows: list[Row] = []
    for batch in reversed(batches) if from_behind else batches:
        if len(rows) >= limit and (not by_time or rows[limit - 1][1] >= batch.header.max_timestamp):
            break
        if by_time:
            newest = _newest(batch, limit)
            rows = sorted([*rows, *newest], key=lambda row: -row[1])[:limit]
        elif from_behind:
            rows += reversed(deque(batch.rows(), maxlen=limit))
        else:
            rows += itertools.islice(batch.rows(), limit)
    return rows[:limit]


def _newest(batch: FetchedBatch, limit: int) -> list[Row]:
    """The rows with the highest timestamps; of two with the same timestamp the later one comes first."""
    placed = heapq.nlargest(limit, enumerate(batch.rows()), key=lambda one: (one[1][1], one[0]))
    return [row for _, row in placed]
