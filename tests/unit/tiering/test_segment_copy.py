"""Segments on their way to the object store."""

from __future__ import annotations

import pytest

from chronik.model import StorageError
from chronik.records.batch import BatchHeader, read_header
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.tiering import reader, segment_copy
from chronik.tiering.segment_copy import SegmentCopy

PIECE_BYTES = 1000


def test_a_batch_of_many_pieces_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it joined with each piece, the work would grow with the square of its size."""
    looks = 0

    def counting(data: bytes, position: int = 0) -> BatchHeader:
        nonlocal looks
        looks += 1
        return read_header(data, position)

    monkeypatch.setattr(segment_copy, "read_header", counting)
    records = [Record(key=None, value=b"x" * size, timestamp_ms=1) for size in (100_000, 200)]
    data = b"".join(bytes(build_batch([one], base_offset=at)) for at, one in enumerate(records))
    copy = SegmentCopy("x", 0, 2, 100)
    fed = [copy.feed(data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)]
    assert b"".join(fed) == data
    assert len(fed) > 100
    assert looks <= 5
    copy.finish(())
    assert copy.next_offset == 2


def test_what_could_not_be_read_back_is_not_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert segment_copy.BATCH_BYTES_MAX == reader.BATCH_BYTES_MAX
    batch = bytes(build_batch([Record(key=None, value=b"x" * 2000, timestamp_ms=1)]))
    for limit in (len(batch), len(batch) - 1):
        monkeypatch.setattr(segment_copy, "BATCH_BYTES_MAX", limit)
        copy = SegmentCopy("x", 0, 1, 100)
        if limit == len(batch):
            assert copy.feed(batch) == batch
            continue
        with pytest.raises(StorageError, match=r"the batch at offset 0 has .* stay on this disk"):
            copy.feed(batch)
