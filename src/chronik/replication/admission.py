"""What a topic's configuration demands of a client's batch before it may enter the log.

The header decides for nearly every batch. Only a topic that is compacted, bounds how old a record may be, or
wants another codec than the client's, and timestamps that cannot be right, make the records themselves be
looked at. That is done at once if there are few of them. A batch of many would hold up the event loop: it is
looked into in an I/O thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from chronik.metadata.config_def import LONG_MAX
from chronik.metadata.topic_config import TopicConfig
from chronik.model import BATCH_RECORDS_MAX, ErrorCode, InvalidRecords, RecordError, RequestError
from chronik.records.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_BYTES,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    read_header,
)
from chronik.records.body import TooManyRecords, body_of
from chronik.records.compression import Compression, DecompressedTooLarge
from chronik.records.editing import all_have_keys, raw_records, recompressed, timestamps_of
from chronik.records.timestamps import as_create_time, derive_max, with_derived_max

_CODEC_MAX: Final = int(Compression.ZSTD)

RECORD_ERRORS_MAX: Final = 1_000
"""How many records of a batch a refusal names: a batch can hold more than an answer should."""
LOOP_RECORDS_MAX: Final = 5_000
"""Records that are looked at on the event loop: a few milliseconds."""
LOOP_BYTES_MAX: Final = 256 * 1024
"""Decompressed bytes that are looked at on the event loop."""
LOOP_COMPRESSED_BYTES_MAX: Final = 64 * 1024
"""A larger compressed batch counts as one of more than `LOOP_BYTES_MAX` and is not decompressed on the
loop."""


class TooMuchForLoop(Exception):
    """Reading the batch's records would block the event loop too long: call `admit` in an I/O thread."""


class Admitted(NamedTuple):
    """A batch that was checked in an I/O thread."""

    records: memoryview
    header: BatchHeader
    config: TopicConfig
    """What it was checked against."""


def admit(
    records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int, is_on_loop: bool = False
) -> tuple[memoryview, BatchHeader]:
    """The batch to append (the same one, unless it has to be recompressed), or RequestError.

    On the event loop it may raise TooMuchForLoop; the batch is then as it was.
    """
    size, attributes = len(records), header.attributes
    codec = attributes & COMPRESSION_MASK
    if size > config.max_message_bytes:
        raise _too_large(size, config)
    if attributes & CONTROL_MASK:
        raise RequestError(ErrorCode.invalid_record, "clients may not write control batches")
    if not header.last_offset_delta + 1 == header.record_count <= BATCH_RECORDS_MAX:
        raise _impossible_count(header)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise RequestError(ErrorCode.invalid_record, "a batch with a producer id needs a sequence")
    if codec > _CODEC_MAX:
        raise RequestError(ErrorCode.unsupported_compression_type, f"codec {codec} is unknown")
    body: bytes | None = None
    if attributes & TIMESTAMP_TYPE_MASK and not config.stamps_append_time:
        body = _look_into(records, header, is_on_loop)
        header = as_create_time(records, header, body)
    if not config.stamps_append_time and not (
        0 <= header.base_timestamp <= header.max_timestamp <= now_ms + config.message_timestamp_after_max_ms
        and config.message_timestamp_before_max_ms == LONG_MAX
    ):
        body = _look_into(records, header, is_on_loop) if body is None else body
        header = _with_valid_timestamps(records, header, body, config, now_ms)
    if config.is_compacted:
        body = _look_into(records, header, is_on_loop) if body is None else body
        if not all_have_keys(header, body):
            raise _without_keys(header, body)
    if config.compression_type != "producer":
        wanted = Compression.named(config.compression_type)
        if wanted != codec:
            body = _look_into(records, header, is_on_loop) if body is None else body
            records = memoryview(_recompress(header, body, wanted, config))
            header = read_header(records)
    return records, header


def _look_into(records: memoryview, header: BatchHeader, is_on_loop: bool) -> bytes:
    """Decompress the records. Raises TooMuchForLoop only here, before anything has been changed."""
    if not is_on_loop:
        return body_of(header, records)
    size_max = LOOP_COMPRESSED_BYTES_MAX if header.attributes & COMPRESSION_MASK else LOOP_BYTES_MAX
    if header.record_count > LOOP_RECORDS_MAX or len(records) > size_max:
        raise TooMuchForLoop
    try:
        return body_of(header, records, limit=LOOP_BYTES_MAX)
    except DecompressedTooLarge:
        raise TooMuchForLoop from None


def _too_large(size: int, config: TopicConfig) -> RequestError:
    return RequestError(
        ErrorCode.message_too_large,
        f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}",
    )


def _impossible_count(header: BatchHeader) -> RequestError:
    if header.record_count != header.last_offset_delta + 1:
        return RequestError(ErrorCode.invalid_record, "record count and offsets of the batch do not match")
    return TooManyRecords(header.record_count)


def _without_keys(header: BatchHeader, body: bytes) -> InvalidRecords:
    return _invalid(
        ErrorCode.invalid_record,
        "a compacted topic takes only records with a key",
        (
            RecordError(index, "Compacted topic cannot accept message without key.")
            for index, record in enumerate(raw_records(header, body))
            if record.key is None
        ),
    )


def _with_valid_timestamps(
    records: memoryview, header: BatchHeader, body: bytes, config: TopicConfig, now_ms: int
) -> BatchHeader:
    """Refuse a batch with a timestamp outside the range that the topic allows.

    The header has the highest timestamp, but not the lowest: any record may be older than the first.
    """
    header = with_derived_max(records, header, body)
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if config.message_timestamp_before_max_ms == LONG_MAX and header.max_timestamp <= latest:
        return header
    errors = _invalid(
        ErrorCode.invalid_timestamp,
        "a timestamp lies further from now than the topic's settings allow",
        (
            RecordError(
                index,
                f"Timestamp {timestamp} of message with offset {index} is out of range. "
                f"The timestamp should be within [{earliest}, {latest}]",
            )
            for index, timestamp in enumerate(timestamps_of(header, body))
            if timestamp >= 0 and not earliest <= timestamp <= latest
        ),
    )
    if errors.record_errors:
        raise errors
    return derive_max(records, header, body)  # the header claimed what no record has


def _invalid(code: ErrorCode, why: str, errors: Iterable[RecordError]) -> InvalidRecords:
    """`errors` is read no further than what a refusal names: each costs a string."""
    return InvalidRecords(
        code, f"One or more records have been rejected: {why}.", tuple(islice(errors, RECORD_ERRORS_MAX))
    )


def _recompress(header: BatchHeader, body: bytes, codec: Compression, config: TopicConfig) -> bytearray:
    """Raises RequestError if it becomes larger than the topic takes, as Kafka does."""
    if codec is Compression.NONE and HEADER_BYTES + len(body) > config.max_message_bytes:
        raise _too_large(HEADER_BYTES + len(body), config)
    deque(timestamps_of(header, body), maxlen=0)  # refuses what makes no sense
    batch = recompressed(header, body, codec)
    if len(batch) > config.max_message_bytes:
        raise _too_large(len(batch), config)
    return batch
