"""Records that cannot be read are skipped, counted, and logged once per topic; all others are still found."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from chronik.client import Fetched
from chronik.model import RequestError
from chronik.records.reader import Row, Unreadable

__all__ = ["Skipped", "readable_rows"]

log = logging.getLogger(__name__)

TOPICS_NAMED_MAX: Final = 1_000
_INT64: Final = range(-(2**63), 2**63)


class Skipped:
    """How many records this process left out. Counted by several threads, so now and then one is missed."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self.count = 0
        self._named: set[str] = set()

    def add(self, topic: str, partition: int, count: int, why: str) -> None:
        self.count += count
        if not self._is_quiet and topic not in self._named and len(self._named) < TOPICS_NAMED_MAX:
            self._named.add(topic)
            log.warning("%s-%d: records are left out of search or SQL: %s", topic, partition, why)


def readable_rows(part: Fetched, skipped: Skipped) -> Iterator[Row]:
    """The rows that can be indexed: of batches that can be decoded, with offsets that the log gave them.

    One after the other: a part of a few megabytes can hold more than memory does.
    """
    topic, partition = part.tp

    def leave_out(batch: Unreadable) -> None:
        skipped.add(topic, partition, batch.last_offset - batch.first_offset + 1, str(batch))

    offsets = range(part.fetch_offset, part.next_offset)
    seen = bad = 0
    try:
        for row in part.rows(leave_out):
            seen += 1
            if row[0] in offsets and row[1] in _INT64:
                yield row
            else:
                bad += 1
    except RequestError as error:
        skipped.add(topic, partition, max(part.next_offset - part.fetch_offset - seen, 1), str(error))
    if bad:
        skipped.add(topic, partition, bad, "a record says it has another's offset")
