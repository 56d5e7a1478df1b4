"""Build a batch out of records. For tools, control records and internal topics."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from chronik.records.batch import (
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    MAGIC_V2,
    NO_PRODUCER_ID,
    OVERHEAD_BYTES,
    TRANSACTIONAL_MASK,
    reseal,
)
from chronik.records.compression import Compression, compress
from chronik.records.reader import Record


def put_varint(out: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        put_varint(out, -1)
    else:
        put_varint(out, len(data))
        out += data


def _put_record(out: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    body = bytearray(b"\x00")
    put_varint(body, timestamp_delta)
    put_varint(body, offset_delta)
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    put_varint(body, len(record.headers))
    for name, content in record.headers:
        _put_bytes(body, name.encode())
        _put_bytes(body, content)
    put_varint(out, len(body))
    out += body


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    leader_epoch: int = 0,
    compression: int = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    extra_attributes: int = 0,
    base_timestamp_ms: int | None = None,
) -> bytearray:
    """One batch with these records, in order; `offset_deltas` leaves gaps, as compaction does."""
    base_timestamp = records[0].timestamp_ms if records else -1
    if base_timestamp_ms is not None:
        base_timestamp = base_timestamp_ms
    max_timestamp = max((record.timestamp_ms for record in records), default=-1)
    body = bytearray()
    for index, record in enumerate(records):
        delta = index if offset_deltas is None else offset_deltas[index]
        _put_record(body, record, delta, record.timestamp_ms - base_timestamp)
    payload = compress(compression, body) if compression else body
    attributes = int(compression) | extra_attributes
    attributes |= (TRANSACTIONAL_MASK if is_transactional else 0) | (CONTROL_MASK if is_control else 0)
    if last_offset_delta is None:
        last_offset_delta = max(len(records) - 1, 0) if offset_deltas is None else offset_deltas[-1]
    size = HEADER_BYTES + len(payload)
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        size - OVERHEAD_BYTES,
        leader_epoch,
        MAGIC_V2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += payload
    reseal(batch, 0, size)
    return batch


_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


def build_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """A transaction marker: a control batch with one record that says commit or abort."""
    record = Record(
        key=_MARKER_KEY.pack(0, 1 if commit else 0),
        value=_MARKER_VALUE.pack(0, coordinator_epoch),
        timestamp_ms=timestamp_ms,
    )
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
