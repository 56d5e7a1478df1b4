"""The youngest records: what was read of a partition's log and is not in its index yet.

They are kept as they came, which costs next to nothing. A search looks through them for records that its
query may find, and gives up if that takes too long or finds too many: the index will have them soon.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from chronik.client import Fetched
from chronik.client.visibility import visible_batches
from chronik.query.conditions import ANYTHING, Condition, Piece, condition_of
from chronik.records.batch import HEADER_BYTES, BatchHeader, check_batch
from chronik.records.compression import decompress
from chronik.records.reader import Row, read_rows

__all__ = ["ROWS_MAX", "Batch", "Chosen", "Fresh", "Tail", "choose", "fresh"]

ROWS_MAX: Final = 20_000
"""Records that are indexed for one search alone."""
SECONDS_MAX: Final = 2.0
_EARLIEST: Final = -(2**63)

Rows: TypeAlias = dict[int, list[Row]]
"""By partition."""


class Tail:
    """What was read of one partition, in order. Changed by one thread; `parts` can be taken by any."""

    def __init__(self, position: int) -> None:
        self.position = position
        """Behind the last record that was read."""
        self.parts: tuple[Fetched, ...] = ()
        self.size_bytes = 0

    def add(self, part: Fetched) -> None:
        self.parts += (part,)
        self.size_bytes += len(part.data)
        self.position = part.next_offset

    def drop(self, before_offset: int) -> None:
        """The index has them."""
        self.parts = tuple(part for part in self.parts if part.next_offset > before_offset)
        self.size_bytes = sum(len(part.data) for part in self.parts)

    def next_part(self, position: int) -> Fetched | None:
        """The one to index next. Where the log lost its beginning, the next does not begin at `position`."""
        return next((part for part in self.parts if part.fetch_offset >= position), None)


class Batch(NamedTuple):
    part: Fetched
    position: int
    header: BatchHeader
    first_offset: int
    """Records before are not to be seen."""

    def rows(self) -> list[Row]:
        check_batch(self.part.data, self.position)
        return [row for row in read_rows(self.part.data, self.position) if row[0] >= self.first_offset]

    def records(self) -> int:
        is_whole = self.header.base_offset >= self.first_offset
        return self.header.record_count if is_whole else len(self.rows())

    def piece(self) -> Piece:
        header = self.header
        body = self.part.data[self.position + HEADER_BYTES : self.position + header.size_bytes]
        return Piece(
            bytes(decompress(header.compression, body)).lower(),
            self.part.tp.partition,
            (header.base_offset, header.last_offset),
            (_EARLIEST, header.max_timestamp),
            is_batch=True,
        )


Fresh: TypeAlias = Mapping[int, Sequence[Batch]]
"""The batches that no index has, by partition, in order."""


def fresh(parts: Sequence[Fetched], first_offset: int) -> list[Batch]:
    """Those with records from this offset on that a reader may see."""
    found = []
    for part in parts:
        first = max(first_offset, part.fetch_offset)
        for position, header in visible_batches(part.data, part.aborted):
            if header.last_offset >= first and header.record_count:
                found.append(Batch(part, position, header, first))
    return found


class Chosen(NamedTuple):
    rows: Rows
    """Those that the query may find; of all records, those that can be shown."""
    total: int | None
    """How many there are, if that is known without a search."""


def choose(
    batches: Fresh, query: Any, limit: int, *, order: str | None, ascending: bool, by_value: bool
) -> Chosen | None:
    """What has to be searched; None if it is too much. `order` is None for the best first."""
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
            chosen[number] += itertools.islice(_candidates(batch, condition), left + 1)
            left = ROWS_MAX - sum(map(len, chosen.values()))
            if left < 0 or time.monotonic() > deadline:
                return None
    return Chosen(chosen, None)


def _candidates(batch: Batch, condition: Condition) -> Iterator[Row]:
    if condition == ANYTHING:
        yield from batch.rows()
    elif condition.holds(batch.piece()):
        number = batch.part.tp.partition
        for row in batch.rows():
            offset, timestamp_ms, key, value, _ = row
            text = b"%b\n%b" % (key or b"", value or b"")
            if condition.holds(Piece(text.lower(), number, (offset, offset), (timestamp_ms, timestamp_ms))):
                yield row


def _ends(batches: Sequence[Batch], limit: int, order: str | None, ascending: bool) -> list[Row]:
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
        own = batch.rows()
        rows += reversed(own) if from_behind else own
        if by_time:
            rows.sort(key=lambda row: -row[1])
    return rows[:limit]
