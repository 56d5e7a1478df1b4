"""Batches with a right checksum that no reader can decode."""

from __future__ import annotations

from functools import cache
from typing import Any

from chronik.model import BATCH_RECORDS_MAX, Limits
from chronik.records.batch import HEADER, HEADER_BYTES, OVERHEAD_BYTES, read_header, reseal
from chronik.records.compression import Compression, compress
from chronik.records.reader import Record
from chronik.records.writer import build_batch, put_varint


def batch_with_body(body: bytes, codec: Compression, *, record_count: int = 1, **how: Any) -> bytearray:
    """A batch whose header is in order and whose records are `body`, compressed already."""
    plain = build_batch([Record(key=b"k", value=b"v", timestamp_ms=1000)] * record_count, **how)
    header = read_header(plain)._replace(
        attributes=int(codec), batch_length=HEADER_BYTES - OVERHEAD_BYTES + len(body)
    )
    made = bytearray(HEADER_BYTES)
    HEADER.pack_into(made, 0, *header)
    made += body
    reseal(made, 0, len(made))
    return made


@cache
def _zeros(codec: Compression) -> bytes:
    return compress(codec, bytes(Limits().decompressed_bytes_max + 1))


def bomb(codec: Compression = Compression.ZSTD, **how: Any) -> bytearray:
    """A few kilobytes that become more than may be decompressed."""
    return batch_with_body(_zeros(codec), codec, **how)


def nonsense(**how: Any) -> bytearray:
    """Records that end before they begin."""
    return batch_with_body(b"\x00\xff" * 20, Compression.NONE, **how)


FULL_BYTES = Limits().decompressed_bytes_max
"""The most that may be decompressed."""


@cache
def _crowded(codec: Compression, count: int, has_key: bool, value_bytes: int) -> bytes:
    key = b"\x00" if has_key else b"\x01"
    record = bytearray(b"\x00\x00\x00" + key)
    put_varint(record, value_bytes)
    record += bytes(value_bytes) + b"\x00"
    length = bytearray()
    put_varint(length, len(record))
    return compress(codec, bytes(length + record) * count)


def crowd(
    count: int,
    codec: Compression = Compression.ZSTD,
    *,
    has_key: bool = True,
    value_bytes: int = 0,
    base_timestamp: int = 1000,
    max_timestamp: int | None = None,
    **changes: int,
) -> bytearray:
    """Very many small records in a batch. All are the same, so that a few kilobytes hold millions."""
    body = _crowded(codec, count, has_key, value_bytes)
    made = batch_with_body(body, codec)
    header = read_header(made)._replace(
        last_offset_delta=count - 1,
        record_count=count,
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp if max_timestamp is None else max_timestamp,
    )
    HEADER.pack_into(made, 0, *header._replace(**changes))
    reseal(made, 0, len(made))
    return made


def full_crowd(codec: Compression = Compression.ZSTD, **how: Any) -> bytearray:
    """Half a million records that decompress to what is just allowed: the most expensive that is taken."""
    count = BATCH_RECORDS_MAX // 2
    return crowd(count, codec, value_bytes=FULL_BYTES // count - 10, **how)
