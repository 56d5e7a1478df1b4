"""The highest timestamp of a batch: read from its records where the batch header cannot be right."""

from __future__ import annotations

import struct
from typing import Final

from chronik.records.batch import (
    ATTRIBUTES_OFFSET,
    MAX_TIMESTAMP_OFFSET,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    reseal,
)
from chronik.records.editing import timestamps_of

NO_TIMESTAMP: Final = -1

BELIEVABLE_MS_MIN: Final = 365 * 24 * 3_600_000
"""The end of 1970. A timestamp before that is a mistake of the client (0 for "none", or seconds), and it is
not by itself a reason to delete what was written a moment ago."""

_I16: Final = struct.Struct(">h")
_I64: Final = struct.Struct(">q")


def is_believable(timestamp_ms: int, now_ms: int) -> bool:
    """Whether a record's timestamp may decide how old it is."""
    return timestamp_ms >= 0 and not timestamp_ms < BELIEVABLE_MS_MIN <= now_ms


def with_derived_max(records: memoryview, header: BatchHeader, body: bytes) -> BatchHeader:
    """Correct the highest timestamp in the header of a client's batch, as Kafka does for every batch.

    A header whose first record has a timestamp and whose highest is not below it is believed: looking at each
    record costs more than the rest of a produce. Others are looked into. For records without a timestamp
    librdkafka sends -1 as the first and 0 as the highest; the highest is then -1, for none.
    """
    if 0 <= header.base_timestamp <= header.max_timestamp:
        return header
    return derive_max(records, header, body)


def as_create_time(records: memoryview, header: BatchHeader, body: bytes) -> BatchHeader:
    """Take from a client's batch the claim that its timestamps are the broker's, as Kafka does.

    Readers would give every record the highest timestamp.
    """
    attributes = header.attributes & ~TIMESTAMP_TYPE_MASK
    _I16.pack_into(records, ATTRIBUTES_OFFSET, attributes)
    reseal(records, 0, len(records))
    return derive_max(records, header._replace(attributes=attributes), body)


def derive_max(records: memoryview, header: BatchHeader, body: bytes) -> BatchHeader:
    """Look at every record, and write the highest timestamp that is there into the batch's header.

    `body` is what `body_of` finds in the batch.
    """
    found = max(NO_TIMESTAMP, max(timestamps_of(header, body), default=NO_TIMESTAMP))
    if found == header.max_timestamp:
        return header
    _I64.pack_into(records, MAX_TIMESTAMP_OFFSET, found)
    reseal(records, 0, len(records))
    return header._replace(max_timestamp=found)
