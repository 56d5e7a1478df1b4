"""Which batches of a fetch a reader sees (KIP-98): no control batches, and no batches listed as aborted.

Pure: bytes and the broker's list of aborted transactions in, batches out. The list covers what was fetched
together, so a transaction that began before is named with the offset of its beginning.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from chronik.records.batch import BatchHeader, Buffer, headers
from chronik.records.reader import read_records

_ABORT: Final = b"\x00\x00"
"""Type in a marker's key (behind two bytes of version) that ends a transaction by throwing it away."""


class AbortedTransaction(NamedTuple):
    first_offset: int
    producer_id: int


def visible_batches(
    data: Buffer, aborted: Sequence[AbortedTransaction] = ()
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch whose records a reader may see, in order."""
    coming = list(aborted)
    heapq.heapify(coming)
    aborting: set[int] = set()
    for position, header in headers(data):
        while coming and coming[0].first_offset <= header.last_offset:
            aborting.add(heapq.heappop(coming).producer_id)
        if header.is_control:
            if header.producer_id in aborting and _is_abort(data, position):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield position, header


def _is_abort(data: Buffer, position: int) -> bool:
    for record in read_records(data, position):
        return record.key is not None and record.key[2:4] == _ABORT
    return False
