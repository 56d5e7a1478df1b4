"""The records of a batch, decompressed: the door through which everybody goes who looks into a batch."""

from __future__ import annotations

from typing import Final

from chronik.model import BATCH_RECORDS_MAX, ErrorCode, RequestError
from chronik.records.batch import HEADER_BYTES, BatchHeader, Buffer
from chronik.records.compression import decompress

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, timestamp, offset, two lengths and the number of headers: a byte each."""


def body_of(header: BatchHeader, batch: Buffer, position: int = 0, limit: int | None = None) -> bytes:
    """The records of the whole batch at `position`.

    Raises RequestError if they are more than `BATCH_RECORDS_MAX`, more than their bytes can hold, or larger
    than `limit` (without one, than what may be decompressed).
    """
    count = header.record_count
    if count <= 0:
        return b""
    if count > BATCH_RECORDS_MAX:
        raise TooManyRecords(count)
    data = decompress(
        header.compression, memoryview(batch)[position + HEADER_BYTES : position + header.size_bytes], limit
    )
    if count * RECORD_BYTES_MIN > len(data):
        raise RequestError(
            ErrorCode.corrupt_message, f"{count} records cannot be in the {len(data)} bytes of a batch"
        )
    return data


class TooManyRecords(RequestError):
    """A batch claims more records than anybody may put into one. Producers answer this error by splitting."""

    def __init__(self, count: int) -> None:
        super().__init__(
            ErrorCode.message_too_large,
            f"a batch of {count} records; at most {BATCH_RECORDS_MAX} are taken",
        )
