"""The highest timestamp of a client's batch: derived where the header cannot be right."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.model import ErrorCode, RequestError
from chronik.records import timestamps
from chronik.records.batch import BatchHeader, check_batch, reseal
from chronik.records.body import body_of
from chronik.records.reader import Record, read_records
from chronik.records.writer import build_batch

BASE_TIMESTAMP_OFFSET, MAX_TIMESTAMP_OFFSET = 27, 35


def with_derived_max(batch: memoryview, header: BatchHeader) -> BatchHeader:
    return timestamps.with_derived_max(batch, header, body_of(header, batch))


def claiming(batch: bytearray, max_timestamp: int) -> tuple[memoryview, BatchHeader]:
    """The batch as a client sends it that writes something else into the header."""
    struct.pack_into(">q", batch, MAX_TIMESTAMP_OFFSET, max_timestamp)
    reseal(batch, 0, len(batch))
    return memoryview(batch), check_batch(batch)


def records_at(*timestamps: int) -> list[Record]:
    return [Record(key=b"k", value=b"v", timestamp_ms=timestamp) for timestamp in timestamps]


@given(st.integers(0, 4))
def test_a_batch_without_timestamps_has_none_whatever_it_claims(codec: int) -> None:
    """librdkafka sends base_timestamp -1 and max_timestamp 0."""
    made = build_batch(records_at(-1, -1), compression=codec, base_timestamp_ms=-1)
    batch, header = claiming(made, 0)
    derived = with_derived_max(batch, header)
    assert derived.max_timestamp == -1
    assert check_batch(batch).max_timestamp == -1, "stored with a right checksum"
    assert [record.timestamp_ms for record in read_records(batch)] == [-1, -1]


def test_a_highest_timestamp_below_the_first_is_derived() -> None:
    batch, header = claiming(build_batch(records_at(5_000, 9_000, 7_000)), 0)
    assert with_derived_max(batch, header).max_timestamp == 9_000
    assert check_batch(batch).max_timestamp == 9_000


def test_a_header_that_can_be_right_is_left_alone() -> None:
    made = build_batch(records_at(5_000, 9_000))
    before = bytes(made)
    header = check_batch(made)
    assert with_derived_max(memoryview(made), header) is header
    assert bytes(made) == before


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    """The base of the batch and the difference in the record are 64 bits each, their sum need not be."""
    made = build_batch(records_at(0, 2**62))
    struct.pack_into(">q", made, BASE_TIMESTAMP_OFFSET, 2**63 - 1)
    batch, header = claiming(made, 0)
    with pytest.raises(RequestError) as refused:
        with_derived_max(batch, header)
    assert refused.value.code == ErrorCode.corrupt_message
