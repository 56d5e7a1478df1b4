"""Take records out of a batch and leave the rest as it was.

A record's bytes hold only differences to the batch's base offset and base timestamp; as long as these stay,
the records that are kept are copied as they are. Sequence numbers and offsets of a batch never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from chronik.model import ErrorCode, RequestError
from chronik.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    TRANSACTIONAL_MASK,
    BatchHeader,
    reseal,
)
from chronik.records.compression import compress
from chronik.records.writer import put_varint

_I64_MIN: Final = -(2**63)
_I64_MAX: Final = 2**63 - 1


class RawRecord(NamedTuple):
    """Where a record stands in the decompressed records of its batch."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    offset_at: int
    """Where the bytes begin that no change of the base timestamp touches."""
    key: bytes | None
    has_value: bool


def raw_records(header: BatchHeader, body: bytes) -> Iterator[RawRecord]:
    """The records of a batch, in order. Raises RequestError(corrupt_message) for nonsense."""
    position = 0
    earliest, latest = _I64_MIN - header.base_timestamp, _I64_MAX - header.base_timestamp
    try:
        for _ in range(header.record_count):
            start = position
            length, position = _varint(body, position)
            end = position + length
            if length <= 0 or end > len(body):
                raise ValueError("a record is longer than its batch")
            timestamp_delta, offset_at = _varint(body, position + 1)
            if not earliest <= timestamp_delta <= latest:
                raise ValueError("a record's timestamp has more than 64 bits")
            offset_delta, position = _varint(body, offset_at)
            key_length, position = _varint(body, position)
            key = None
            if key_length >= 0:
                key = body[position : position + key_length]
                position += key_length
            value_length, position = _varint(body, position)
            if max(position, position + value_length) > end:
                raise ValueError("a record does not end where its length says")
            yield RawRecord(start, end, timestamp_delta, offset_delta, offset_at, key, value_length >= 0)
            position = end
    except (IndexError, ValueError) as error:
        raise RequestError(ErrorCode.corrupt_message, f"a record cannot be read: {error}") from error


def keys_of(header: BatchHeader, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Offset delta and key of each record that has a key: what `raw_records` would say, sooner."""
    position = 0
    try:
        for _ in range(header.record_count):
            length, position = _varint(body, position)
            end = position + length
            if length <= 0 or end > len(body):
                raise ValueError("a record is longer than its batch")
            position += 1
            while body[position] >= 0x80:  # the timestamp
                position += 1
            offset_delta, position = _varint(body, position + 1)
            key_length, position = _varint(body, position)
            if key_length >= 0:
                if position + key_length >= end:
                    raise ValueError("a key is longer than its record")
                yield offset_delta, body[position : position + key_length]
            position = end
    except (IndexError, ValueError) as error:
        raise RequestError(ErrorCode.corrupt_message, f"a record cannot be read: {error}") from error


def all_have_keys(header: BatchHeader, body: bytes) -> bool:
    """Whether each record of a batch has a key: lengths are followed, nothing is taken out.

    Written without calls, as `timestamps_of` is, because a batch can have a million records.
    """
    position, size = 0, len(body)
    try:
        for _ in range(header.record_count):
            if (length := body[position]) < 0x80:
                start = position + 1
                length = (length >> 1) ^ -(length & 1)
            else:
                length, start = _varint(body, position)
            position = start + length
            if length <= 0 or position > size:
                raise ValueError("a record is longer than its batch")
            start += 1
            if (body[start] | body[start + 1]) < 0x80:  # timestamp and offset
                start += 2
            else:
                for _ in range(2):
                    while body[start] >= 0x80:
                        start += 1
                    start += 1
            if body[start] & 1:  # zigzag: a negative length
                return False
    except (IndexError, ValueError) as error:
        raise RequestError(ErrorCode.corrupt_message, f"a record cannot be read: {error}") from error
    return True


def timestamps_of(header: BatchHeader, body: bytes) -> Iterator[int]:
    """The timestamp of each record of a batch, in order. Lengths are followed, nothing else is looked at."""
    position, size, base = 0, len(body), header.base_timestamp
    try:
        for _ in range(header.record_count):
            if (length := body[position]) < 0x80:
                position += 1
                length = (length >> 1) ^ -(length & 1)
            else:
                length, position = _varint(body, position)
            end = position + length
            if length <= 0 or end > size:
                raise ValueError("a record is longer than its batch")
            if (delta := body[position + 1]) < 0x80:
                timestamp = base + ((delta >> 1) ^ -(delta & 1))
            else:
                delta, _ = _varint(body, position + 1)
                timestamp = base + delta
            if not _I64_MIN <= timestamp <= _I64_MAX:
                raise ValueError("a record's timestamp has more than 64 bits")
            yield timestamp
            position = end
    except (IndexError, ValueError) as error:
        raise RequestError(ErrorCode.corrupt_message, f"a record cannot be read: {error}") from error


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    raw = data[position]
    position += 1
    if raw >= 0x80:
        raw &= 0x7F
        shift = 7
        while True:
            byte = data[position]
            position += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise ValueError("a varint does not end")
    return (raw >> 1) ^ -(raw & 1), position


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """The time from which on tombstones and markers of this batch may go; None if that is not decided yet
    (KIP-534)."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_MASK else None


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without its records: offsets, producer and sequences stay known."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_MASK)
    return _seal(header, attributes, header.max_timestamp, header.max_timestamp, 0, b"")


def keep_records(
    header: BatchHeader, body: bytes, records: Sequence[RawRecord], horizon_ms: int | None
) -> bytearray:
    """The batch with only these of its records; `horizon_ms` is noted in it if it has none yet."""
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if horizon_ms is None or delete_horizon_ms(header) is not None:
        kept = b"".join([body[record.start : record.end] for record in records])
    else:
        base_timestamp, attributes = horizon_ms, attributes | DELETE_HORIZON_MASK
        kept = _rebased(header, body, records, base_timestamp)
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = max(header.base_timestamp + record.timestamp_delta for record in records)
    payload = compress(header.compression, kept) if header.compression else kept
    return _seal(header, attributes, base_timestamp, max_timestamp, len(records), payload)


def recompressed(header: BatchHeader, body: bytes, codec: int) -> bytearray:
    """A client's batch with the same records, compressed by another codec."""
    attributes = header.attributes & TRANSACTIONAL_MASK | codec
    payload = compress(codec, body) if codec else body
    return _seal(
        header, attributes, header.base_timestamp, header.max_timestamp, header.record_count, payload
    )


def _rebased(header: BatchHeader, body: bytes, records: Sequence[RawRecord], base_timestamp: int) -> bytes:
    """The same records with timestamps counted from another base."""
    shift = header.base_timestamp - base_timestamp
    out = bytearray()
    for record in records:
        inner = bytearray(1)  # attributes: unused in v2
        put_varint(inner, max(record.timestamp_delta + shift, _I64_MIN))
        inner += body[record.offset_at : record.end]
        put_varint(out, len(inner))
        out += inner
    return bytes(out)


def _seal(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytearray:
    size = HEADER_BYTES + len(payload)
    batch = bytearray(HEADER_BYTES)
    changed = header._replace(
        batch_length=size - OVERHEAD_BYTES,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
    )
    HEADER.pack_into(batch, 0, *changed)
    batch += payload
    reseal(batch, 0, size)
    return batch
