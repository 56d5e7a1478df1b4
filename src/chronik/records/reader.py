"""Look inside a batch: one `Record` per record. For tools and internal topics, not for the hot path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chronik.model import ErrorCode, RequestError
from chronik.records.batch import HEADER_BYTES, BatchHeader, Buffer, headers, read_header
from chronik.records.compression import decompress

_VARINT_BYTES_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())
    timestamp_ms: int = -1
    offset: int = -1


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    shift = raw = 0
    for _ in range(_VARINT_BYTES_MAX):
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
    raise ValueError("a varint does not end")


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise ValueError("a field is longer than its batch")
    return data[position:end], end


def read_records(batch: Buffer, position: int = 0) -> Iterator[Record]:
    """The records of the batch at `position`. Raises RequestError(corrupt_message) for nonsense."""
    header = read_header(batch, position)
    body = memoryview(batch)[position + HEADER_BYTES : position + header.size_bytes]
    data = decompress(header.compression, body)
    try:
        yield from _decode(header, data)
    except (IndexError, ValueError) as error:
        raise RequestError(ErrorCode.corrupt_message, f"a record cannot be read: {error}") from error


def _decode(header: BatchHeader, data: bytes) -> Iterator[Record]:
    position = 0
    for _ in range(header.record_count):
        length, position = _varint(data, position)
        end = position + length
        if length <= 0 or end > len(data):
            raise ValueError("a record is longer than its batch")
        position += 1  # attributes: unused in v2
        timestamp_delta, position = _varint(data, position)
        offset_delta, position = _varint(data, position)
        key, position = _bytes(data, position)
        value, position = _bytes(data, position)
        count, position = _varint(data, position)
        if not 0 <= count <= length:
            raise ValueError("an impossible number of headers")
        pairs = []
        for _ in range(count):
            name, position = _bytes(data, position)
            content, position = _bytes(data, position)
            if name is None:
                raise ValueError("a header without a name")
            pairs.append((name.decode(), content))
        if position != end:
            raise ValueError("a record does not end where its length says")
        timestamp_ms = (
            header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
        )
        yield Record(
            key=key,
            value=value,
            headers=tuple(pairs),
            timestamp_ms=timestamp_ms,
            offset=header.base_offset + offset_delta,
        )


class Marker(NamedTuple):
    """What a transaction marker says."""

    is_commit: bool
    coordinator_epoch: int


def read_marker(batch: Buffer) -> Marker | None:
    """The marker in a control batch; None if the batch is of a kind that says nothing of transactions."""
    for record in read_records(batch):
        if record.key is None or len(record.key) < 4:
            return None
        kind = int.from_bytes(record.key[2:4], "big", signed=True)
        if kind not in (0, 1) or record.value is None or len(record.value) < 6:
            return None
        return Marker(kind == 1, int.from_bytes(record.value[2:6], "big", signed=True))
    return None


def read_all_records(buffer: Buffer) -> Iterator[Record]:
    """The records of every whole batch in `buffer`, control batches left out."""
    for position, header in headers(buffer):
        if not header.is_control:
            yield from read_records(buffer, position)
