"""The bytes of `__transaction_state`: Kafka's own key and value formats.

Values are written in version 1, whose tagged fields carry what KIP-890 added; version 0 is read as well.
"""

from __future__ import annotations

import struct
from typing import Final

from chronik.model import TopicPartition
from chronik.records.fields import FieldReader, FieldWriter
from chronik.transactions.transaction import NO_PRODUCER_ID, TxnRecord, TxnState

_KEY_KIND: Final = 0
_TAG_PREVIOUS_PRODUCER_ID: Final = 0
_TAG_NEXT_PRODUCER_ID: Final = 1
_TAG_VERSION: Final = 2
_INT64: Final = struct.Struct(">q")
_INT16: Final = struct.Struct(">h")


def encode_key(transactional_id: str) -> bytes:
    return bytes(FieldWriter().int16(_KEY_KIND).string(transactional_id).data)


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a kind of record that is not known."""
    fields = FieldReader(data)
    return fields.string() if fields.int16() == _KEY_KIND else None


def encode_value(record: TxnRecord) -> bytes:
    out = FieldWriter()

    def write_topic(topic: str) -> None:
        out.compact_string(topic)
        out.compact_array(sorted(tp.partition for tp in record.partitions if tp.topic == topic), out.int32)
        out.tags()

    out.int16(1).int64(record.producer_id).int16(record.producer_epoch)
    out.int32(record.timeout_ms).int8(record.state)
    if record.state is TxnState.EMPTY:
        out.varint(0)  # null: Kafka writes no list for a transaction that never began
    else:
        out.compact_array(sorted({tp.topic for tp in record.partitions}), write_topic)
    out.int64(record.updated_ms).int64(record.started_ms)
    tags = {}
    if record.previous_producer_id != NO_PRODUCER_ID:
        tags[_TAG_PREVIOUS_PRODUCER_ID] = _INT64.pack(record.previous_producer_id)
    if record.next_producer_id != NO_PRODUCER_ID:
        tags[_TAG_NEXT_PRODUCER_ID] = _INT64.pack(record.next_producer_id)
    if record.version:
        tags[_TAG_VERSION] = _INT16.pack(record.version)
    return bytes(out.tags(tags).data)


def decode_value(data: bytes) -> TxnRecord:
    fields = FieldReader(data)
    version = fields.int16()
    if version not in (0, 1):
        raise ValueError(f"transaction record version {version} is not known")
    compact = version == 1

    def read_topic() -> list[TopicPartition]:
        topic = fields.compact_string() if compact else fields.string()
        indexes = fields.compact_array(fields.int32) if compact else fields.array(fields.int32)
        if compact:
            fields.tags()
        return [TopicPartition(topic, index) for index in indexes]

    producer_id, producer_epoch = fields.int64(), fields.int16()
    timeout_ms, state = fields.int32(), TxnState(fields.int8())
    topics = fields.compact_array(read_topic) if compact else fields.array(read_topic)
    updated_ms, started_ms = fields.int64(), fields.int64()
    tags = fields.tags() if compact else {}

    def producer_in(tag: int) -> int:
        return int(_INT64.unpack(tags[tag])[0]) if tag in tags else NO_PRODUCER_ID

    try:
        return TxnRecord(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timeout_ms=timeout_ms,
            state=state,
            partitions=frozenset(tp for topic in topics for tp in topic),
            started_ms=started_ms,
            updated_ms=updated_ms,
            previous_producer_id=producer_in(_TAG_PREVIOUS_PRODUCER_ID),
            next_producer_id=producer_in(_TAG_NEXT_PRODUCER_ID),
            version=int(_INT16.unpack(tags[_TAG_VERSION])[0]) if _TAG_VERSION in tags else 0,
        )
    except struct.error as error:
        raise ValueError(f"a tagged field has the wrong size: {error}") from error
