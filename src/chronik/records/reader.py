"""Look inside a batch: one `Record` per record. For tools and internal topics, not for the hot path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from chronik.model import ErrorCode, RequestError
from chronik.records.batch import BatchHeader, Buffer, headers, read_header
from chronik.records.body import body_of

_VARINT_BYTES_MAX: Final = 10
_NULL: Final = 1
"""The length -1."""
ROWS_AT_ONCE_MAX: Final = 20_000
"""A batch of more records is not decoded into memory: a row takes a few hundred bytes, however small the
record is."""


class Unreadable(NamedTuple):
    """A batch whose records cannot be decoded, although its checksum is right."""

    first_offset: int
    last_offset: int
    timestamp_ms: int
    size_bytes: int
    """Size of the batch, compressed as it is stored."""
    why: str

    def __str__(self) -> str:
        return (
            f"offsets {self.first_offset} to {self.last_offset} ({self.size_bytes} bytes) "
            f"cannot be read: {self.why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())
    timestamp_ms: int = -1
    offset: int = -1
    unreadable: Unreadable | None = None
    """Set on a record that stands for a whole batch that cannot be read. It has neither key nor value, and
    the batch's last offset."""


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    if (low := data[position]) < 0x80:
        return (low >> 1) ^ -(low & 1), position + 1
    if (high := data[position + 1]) < 0x80:
        raw = low & 0x7F | high << 7
        return (raw >> 1) ^ -(raw & 1), position + 2
    shift = raw = 0
    for _ in range(_VARINT_BYTES_MAX):
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
    raise ValueError("a varint does not end")


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers]
"""Offset, timestamp, key, value and headers: a record for those who read very many."""


def read_records(batch: Buffer, position: int = 0) -> Iterator[Record]:
    """The records of the batch at `position`. Raises RequestError(corrupt_message) for nonsense."""
    for offset, timestamp_ms, key, value, pairs in read_rows(batch, position):
        yield Record(key=key, value=value, headers=pairs, timestamp_ms=timestamp_ms, offset=offset)


def read_rows(batch: Buffer, position: int = 0) -> Iterator[Row]:
    """The same as plain tuples, which takes half as long.

    Raises before it returns: of a batch that cannot be decoded as a whole no row is handed out. Very many
    records are therefore decoded twice, and never held together.
    """
    header = read_header(batch, position)
    data = body_of(header, batch, position)
    try:
        if header.record_count <= ROWS_AT_ONCE_MAX:
            return iter(list(_rows(header, data)))
        deque(_rows(header, data), maxlen=0)
    except (IndexError, ValueError) as error:
        raise _malformed(error) from error
    return _rows(header, data)


def rows_until_fault(batch: Buffer) -> Iterator[Row]:
    """The rows of a batch, each decoded when it is asked for. Raises RequestError where one cannot be."""
    header = read_header(batch)
    try:
        yield from _rows(header, body_of(header, batch))
    except (IndexError, ValueError) as error:
        raise _malformed(error) from error


def _malformed(error: IndexError | ValueError) -> RequestError:
    return RequestError(ErrorCode.corrupt_message, f"a record cannot be read: {error}")


def _rows(header: BatchHeader, data: bytes) -> Iterator[Row]:
    """Most numbers fit one byte: those are read in place, since a call costs more than all of the rest.

    A field that is too long ends behind its record, so looking at the end of a record is enough.
    """
    position, size = 0, len(data)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    for _ in range(header.record_count):
        length, position = _varint(data, position)
        end = position + length
        if length <= 0 or end > size:
            raise ValueError("a record is longer than its batch")
        position += 1  # attributes: unused in v2
        if (delta := data[position]) < 0x80:
            timestamp_ms = base_timestamp + ((delta >> 1) ^ -(delta & 1))
            position += 1
        else:
            delta, position = _varint(data, position)
            timestamp_ms = base_timestamp + delta
        if (delta := data[position]) < 0x80:
            offset = base_offset + ((delta >> 1) ^ -(delta & 1))
            position += 1
        else:
            delta, position = _varint(data, position)
            offset = base_offset + delta
        if data[position] == _NULL:
            key, position = None, position + 1
        else:
            key, position = _bytes(data, position)
        value_size, position = _varint(data, position)
        value: bytes | None = None
        if value_size >= 0:
            start, position = position, position + value_size
            value = data[start:position]
        pairs: Headers = ()
        if data[position]:
            pairs, position = _headers(data, position, length)
        else:
            position += 1
        if position != end:
            raise ValueError("a record does not end where its length says")
        yield offset, timestamp_ms if append_time is None else append_time, key, value, pairs


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    return data[position:end], end


def _headers(data: bytes, position: int, length: int) -> tuple[Headers, int]:
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
    return tuple(pairs), position


class EndTransactionMarker(NamedTuple):
    """What a transaction marker says."""

    is_commit: bool
    coordinator_epoch: int


def unreadable_batch(header: BatchHeader, error: RequestError) -> Unreadable:
    return Unreadable(
        header.base_offset, header.last_offset, header.max_timestamp, header.size_bytes, str(error)
    )


def read_marker(batch: Buffer) -> EndTransactionMarker | None:
    """The marker in a control batch; None if the batch is of a kind that says nothing of transactions."""
    for record in read_records(batch):
        if record.key is None or len(record.key) < 4:
            return None
        kind = int.from_bytes(record.key[2:4], "big", signed=True)
        if kind not in (0, 1) or record.value is None or len(record.value) < 6:
            return None
        return EndTransactionMarker(kind == 1, int.from_bytes(record.value[2:6], "big", signed=True))
    return None


def read_all_records(buffer: Buffer) -> Iterator[Record]:
    """The records of every whole batch in `buffer`, control batches left out."""
    for position, header in headers(buffer):
        if not header.is_control:
            yield from read_records(buffer, position)
