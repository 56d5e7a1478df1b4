"""The compiled loops over record batches: bytes in, columns out.

Each returns a count, or `MALFORMED` when the bytes contradict themselves; nothing is read or written
outside the arrays that were passed, whatever the bytes say. The formats are those of `chronik.records`,
whose `reader` is the plain version of the same thing.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chronik.columns.compiling import compiled, copy_bytes

Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]
Offsets: TypeAlias = NDArray[np.int32]

MALFORMED: Final = -1
BATCH_HEADER_BYTES: Final = 61
RECORD_BYTES_MIN: Final = 7
"""A length, attributes, two deltas, no key, no value, no headers: one byte each."""

INT64_MAX: Final = 2**63 - 1
_HALF: Final = 2**62 - 1

# Columns of the table that `index_batches` fills.
POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
ATTRIBUTES: Final = 4
BASE_TIMESTAMP: Final = 5
MAX_TIMESTAMP: Final = 6
PRODUCER_ID: Final = 7
RECORD_COUNT: Final = 8
CRC: Final = 9
BATCH_FIELDS: Final = 10

TIMESTAMP_MS_MIN: Final = -62_135_596_800_000
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""Years 1 to 9999. A producer may write any 64 bits as a time; what lies outside cannot be shown by Python,
Spark or SQL and stands at the border."""


@compiled
def _int(value: Any) -> int:
    """The same 64 bits, signed."""
    return np.int64(value)  # type: ignore[return-value]


@compiled
def _big_endian(data: Bytes, position: int, size: int) -> int:
    value = np.uint64(0)
    for i in range(size):
        value = (value << np.uint64(8)) | np.uint64(data[position + i])
    return _int(value)


@compiled
def _signed_32(data: Bytes, position: int) -> int:
    value = _big_endian(data, position, 4)
    return value - (1 << 32) if value >= 1 << 31 else value


@compiled
def index_batches(data: Bytes, table: Ints) -> int:
    """Read the header of each whole batch into a row of `table`; stops when the table is full.

    A batch that is cut off at the end is left out. MALFORMED: a batch of another format, or with a
    size or a count that cannot be.
    """
    end = len(data)
    position = 0
    row = 0
    while end - position >= BATCH_HEADER_BYTES and row < len(table):
        size = _signed_32(data, position + 8) + 12
        if size < BATCH_HEADER_BYTES or data[position + 16] != 2:
            return MALFORMED
        if size > end - position:
            return row
        base_offset = _big_endian(data, position, 8)
        last_delta = _signed_32(data, position + 23)
        count = _signed_32(data, position + 57)
        if last_delta < 0 or count < 0:
            return MALFORMED
        table[row, POSITION] = position
        table[row, SIZE] = size
        table[row, BASE_OFFSET] = base_offset
        table[row, LAST_OFFSET] = base_offset + last_delta
        table[row, ATTRIBUTES] = _big_endian(data, position + 21, 2)
        table[row, BASE_TIMESTAMP] = _big_endian(data, position + 27, 8)
        table[row, MAX_TIMESTAMP] = _big_endian(data, position + 35, 8)
        table[row, PRODUCER_ID] = _big_endian(data, position + 43, 8)
        table[row, RECORD_COUNT] = count
        table[row, CRC] = _big_endian(data, position + 17, 4)
        position += size
        row += 1
    return row


@compiled
def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it; position MALFORMED when it does not end in time, or
    has more than 64 bits."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    for number in range(10):
        if position >= end:
            return 0, MALFORMED
        byte = np.uint64(data[position])
        position += 1
        if number == 9 and byte > 1:
            return 0, MALFORMED
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            return _int(raw >> np.uint64(1)) ^ -_int(raw & np.uint64(1)), position
        shift += np.uint64(7)
    return 0, MALFORMED


@compiled
def _skip_headers(data: Bytes, position: int, end: int, count: int) -> int:
    """The position behind `count` headers, or MALFORMED."""
    for _ in range(count):
        size, position = _varint(data, position, end)
        if position < 0 or size < 0 or size > end - position:
            return MALFORMED
        size, position = _varint(data, position + size, end)
        if position < 0:
            return MALFORMED
        if size > 0:
            if size > end - position:
                return MALFORMED
            position += size
    return position


@compiled
def _record(body: Bytes, position: int, body_end: int) -> tuple[int, int, int, int, int, int, int, int]:
    """The record at `position`: its end, the deltas of timestamp and offset, size and place of key and of
    value, place of its headers. Its end is MALFORMED if it does not hold together."""
    wrong = (MALFORMED, 0, 0, 0, 0, 0, 0, 0)
    size, position = _varint(body, position, body_end)
    if position < 0 or size <= 0 or size > body_end - position:
        return wrong
    end = position + size
    timestamp, position = _varint(body, position + 1, end)
    if position < 0:
        return wrong
    offset, position = _varint(body, position, end)
    if position < 0:
        return wrong
    key_size, key_at = _varint(body, position, end)
    if key_at < 0 or key_size > end - key_at:
        return wrong
    value_size, value_at = _varint(body, key_at + max(key_size, 0), end)
    if value_at < 0 or value_size > end - value_at:
        return wrong
    headers_at = value_at + max(value_size, 0)
    header_count, position = _varint(body, headers_at, end)
    if position < 0 or header_count < 0 or header_count > size:
        return wrong
    if _skip_headers(body, position, end, header_count) != end:
        return wrong
    return end, timestamp, offset, key_size, key_at, value_size, value_at, headers_at


@compiled
def _put_field(body: Bytes, at: int, size: int, row: int, ends: Offsets, target: Bytes, valid: Bytes) -> None:
    """Append a key or a value to its column, if the column is wanted; a negative size is null."""
    if len(ends) == 0:
        return
    end = ends[row]
    if size >= 0:
        copy_bytes(target, end, body, at, size)
        end += size
        valid[row >> 3] |= 1 << (row & 7)
    ends[row + 1] = end


@compiled
def _bounded(timestamp: int) -> int:
    """The timestamp, limited so that the sum of two fits into 64 bits. The limit is far beyond what can be
    shown."""
    return min(max(timestamp, -_HALF), _HALF)


@compiled
def scan_records(
    body: Bytes,
    batches: Ints,
    window: Ints,
    numbers: Ints,
    types: Offsets,
    key_ends: Offsets,
    keys: Bytes,
    key_valid: Bytes,
    value_ends: Offsets,
    values: Bytes,
    value_valid: Bytes,
    header_positions: Ints,
) -> int:
    """Decode the records of `batches`, whose fields POSITION and SIZE say where in `body` they lie.

    `window` is first and last offset, first and last timestamp in ms: records outside it are left out.
    `numbers` gets offset and timestamp (microseconds) of each row. The arrays for keys, values and header
    positions may be empty: those columns are not wanted. Bitmaps come in zeroed, and so do the first
    elements of the ends. Returns the row count.
    """
    row = 0
    for index in range(len(batches)):
        position = batches[index, POSITION]
        body_end = position + batches[index, SIZE]
        appended = batches[index, ATTRIBUTES] & 8 != 0
        for _ in range(batches[index, RECORD_COUNT]):
            position, timestamp, offset, key_size, key_at, value_size, value_at, headers_at = _record(
                body, position, body_end
            )
            if position < 0 or offset > INT64_MAX - max(batches[index, BASE_OFFSET], 0):
                return MALFORMED
            offset += batches[index, BASE_OFFSET]
            if appended:
                timestamp = batches[index, MAX_TIMESTAMP]
            else:
                timestamp = _bounded(timestamp) + _bounded(batches[index, BASE_TIMESTAMP])
            if offset < window[0] or offset > window[1] or timestamp < window[2] or timestamp > window[3]:
                continue
            numbers[0, row] = offset
            numbers[1, row] = min(max(timestamp, TIMESTAMP_MS_MIN), TIMESTAMP_MS_MAX) * 1000
            types[row] = 1 if appended else 0
            _put_field(body, key_at, key_size, row, key_ends, keys, key_valid)
            _put_field(body, value_at, value_size, row, value_ends, values, value_valid)
            if len(header_positions) > 0:
                header_positions[row] = headers_at
            row += 1
    return row


@compiled
def measure_headers(body: Bytes, positions: Ints, totals: Ints) -> None:
    """How many headers these (well-formed) positions lead to, and the bytes of their names and values."""
    for row in range(len(positions)):
        count, position = _varint(body, positions[row], len(body))
        totals[0] += count
        for _ in range(count):
            size, position = _varint(body, position, len(body))
            totals[1] += size
            size, position = _varint(body, position + size, len(body))
            if size > 0:
                totals[2] += size
                position += size


@compiled
def scan_headers(
    body: Bytes,
    positions: Ints,
    row_ends: Offsets,
    name_ends: Offsets,
    names: Bytes,
    value_ends: Offsets,
    values: Bytes,
    value_valid: Bytes,
) -> int:
    """Fill the columns that `measure_headers` sized; returns the number of headers."""
    header = 0
    name_end = 0
    value_end = 0
    for row in range(len(positions)):
        count, position = _varint(body, positions[row], len(body))
        for _ in range(count):
            size, position = _varint(body, position, len(body))
            copy_bytes(names, name_end, body, position, size)
            name_end += size
            name_ends[header + 1] = name_end
            size, position = _varint(body, position + size, len(body))
            if size >= 0:
                copy_bytes(values, value_end, body, position, size)
                position += size
                value_end += size
                value_valid[header >> 3] |= 1 << (header & 7)
            value_ends[header + 1] = value_end
            header += 1
        row_ends[row + 1] = header
    return header
