"""The header of a record batch, read and patched in place."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from chronik.model import ErrorCode, RequestError

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LENGTH_OFFSET: Final = 8
LEADER_EPOCH_OFFSET: Final = 12
MAGIC_OFFSET: Final = 16
CRC_OFFSET: Final = 17
ATTRIBUTES_OFFSET: Final = 21
"""The CRC covers everything from here to the end of the batch."""
LAST_OFFSET_DELTA_OFFSET: Final = 23
MAX_TIMESTAMP_OFFSET: Final = 35
OVERHEAD_BYTES: Final = 12
"""Base offset and batch length: what `batch_length` does not count."""
MAGIC_V2: Final = 2

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

NO_PRODUCER_ID: Final = -1

_PREFIX: Final = struct.Struct(">qii")
_U32: Final = struct.Struct(">I")
_I16: Final = struct.Struct(">h")
_I64: Final = struct.Struct(">q")


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        """Length of the whole batch, header included."""
        return self.batch_length + OVERHEAD_BYTES

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; the 31-bit counter wraps to 0."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))  # _make is a call of Python more


def _corrupt(why: str) -> RequestError:
    return RequestError(ErrorCode.corrupt_message, why)


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at `position`, or raise what is wrong with it.

    Checks that the batch is whole, of format v2, consistent in its counts, and that its CRC32C is right.
    """
    available = len(buffer) - position
    if available < HEADER_BYTES:
        raise _corrupt(f"a record batch needs {HEADER_BYTES} bytes of header, {available} are here")
    header: BatchHeader = tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC_V2:
        raise RequestError(
            ErrorCode.unsupported_for_message_format,
            f"message format v{header.magic} is not supported, v2 is",
        )
    end = position + header.batch_length + OVERHEAD_BYTES
    if header.batch_length < HEADER_BYTES - OVERHEAD_BYTES or end > len(buffer):
        raise _corrupt(f"batch length {header.batch_length} does not fit the {available} bytes that came")
    if crc32c(memoryview(buffer)[position + ATTRIBUTES_OFFSET : end]) != header.crc:
        raise _corrupt("the CRC of the record batch does not match its bytes")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise RequestError(ErrorCode.invalid_record, "negative record count or offset delta")
    return header


def check_batches(buffer: Buffer) -> list[tuple[int, BatchHeader]]:
    """Position and header of each batch, once all of them are found to be sound and to fill the buffer."""
    found = []
    position = 0
    while position < len(buffer):
        header = check_batch(buffer, position)
        found.append((position, header))
        position += header.batch_length + OVERHEAD_BYTES
    return found


def headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; stops before a cut-off last one. No CRC check."""
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        size = header.batch_length + OVERHEAD_BYTES
        if size < HEADER_BYTES or position + size > end:
            return
        yield position, header
        position += size


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write the offset and epoch that the leader gives the batch from `position` on; the CRC covers neither.

    Its length stands between them and stays what it is: one call writes all three.
    """
    _PREFIX.pack_into(buffer, position, base_offset, len(buffer) - position - OVERHEAD_BYTES, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, size: int, now_ms: int) -> None:
    """Turn a batch into one with log-append time. These fields are covered by the CRC, so that is computed
    again."""
    (attributes,) = _I16.unpack_from(buffer, position + ATTRIBUTES_OFFSET)
    _I16.pack_into(buffer, position + ATTRIBUTES_OFFSET, attributes | TIMESTAMP_TYPE_MASK)
    _I64.pack_into(buffer, position + MAX_TIMESTAMP_OFFSET, now_ms)
    reseal(buffer, position, size)


def reseal(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Recompute the CRC of the batch at `position`."""
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_OFFSET : position + size])
    _U32.pack_into(buffer, position + CRC_OFFSET, crc)
