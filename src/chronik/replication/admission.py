"""What a topic's configuration demands of a client's batch before it may enter the log.

The header decides for nearly every batch. Only a topic that is compacted, or wants another codec than the
client's, makes the records themselves be looked at.
"""

from __future__ import annotations

from typing import Final

from chronik.metadata.topic_config import TopicConfig
from chronik.model import ErrorCode, RequestError
from chronik.records.batch import COMPRESSION_MASK, CONTROL_MASK, BatchHeader, check_batch
from chronik.records.compression import Compression
from chronik.records.editing import all_have_keys, body_of
from chronik.records.reader import read_records
from chronik.records.writer import build_batch

_CODEC_MAX: Final = int(Compression.ZSTD)


def admit(
    records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The batch to append (the same one, unless it has to be recompressed), or RequestError."""
    size, attributes = len(records), header.attributes
    codec = attributes & COMPRESSION_MASK
    if size > config.max_message_bytes:
        raise RequestError(
            ErrorCode.message_too_large,
            f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if attributes & CONTROL_MASK:
        raise RequestError(ErrorCode.invalid_record, "clients may not write control batches")
    if header.record_count != header.last_offset_delta + 1:
        raise RequestError(ErrorCode.invalid_record, "record count and offsets of the batch do not match")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise RequestError(ErrorCode.invalid_record, "a batch with a producer id needs a sequence")
    if codec > _CODEC_MAX:
        raise RequestError(ErrorCode.unsupported_compression_type, f"codec {codec} is unknown")
    if not config.stamps_append_time:
        _check_timestamps(header, config, now_ms)
    if config.is_compacted and not all_have_keys(header, body_of(header, records)):
        raise RequestError(ErrorCode.invalid_record, "a compacted topic takes only records with a key")
    if config.compression_type != "producer":
        wanted = Compression.named(config.compression_type)
        if wanted != codec:
            records = memoryview(_recompress(records, header, wanted))
            header = check_batch(records)
    return records, header


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    if (
        header.base_timestamp >= 0 and now_ms - header.base_timestamp > config.message_timestamp_before_max_ms
    ) or header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise RequestError(
            ErrorCode.invalid_timestamp, "a timestamp lies further from now than the topic's settings allow"
        )


def _recompress(records: memoryview, header: BatchHeader, codec: Compression) -> bytearray:
    return build_batch(
        list(read_records(records)),
        compression=codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        base_timestamp_ms=header.base_timestamp,
    )
