"""Produce, by hand: the request is read without copying records, the response is packed at once.

Versions 0 to 2 are understood only to be refused in their own format: their message formats are gone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from chronik.model import ErrorCode
from chronik.wire.cursor import Reader, put_array_length, put_string, put_uvarint

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_ID: Final = 13
FIRST_SUPPORTED: Final = 3

_RESULT_V2: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_LEADER_TAG: Final = struct.Struct(">ii")
_SINGLE_HEAD: Final = struct.Struct(">BhiB")
_SINGLE_PARTITION: Final = struct.Struct(">Bi")
_NO_TAGS_LEFT: Final = b"\x00\x00\x00"
"""The empty tagged sections of partition, topic and request that end a request."""
_SINGLE_ANSWER: Final = struct.Struct(">iiBB")
_SINGLE_OFFSETS: Final = struct.Struct(">qqq")
_SINGLE_TAIL: Final = b"\x01\x00\x00\x00" + b"\x00\x00\x00\x00" + b"\x00"
"""No record errors, no message, no tags of partition and topic; no throttling; no tags of the response."""


class ProducePartition(NamedTuple):
    topic: str | None
    topic_id: UUID | None
    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]
    records_at: int = 0
    """Where the length of the records stands in a request for one partition; 0 in any other."""


@dataclass(slots=True)
class ProduceResult:
    """The answer for one partition."""

    topic: str | None
    topic_id: UUID | None
    partition: int
    error_code: int = ErrorCode.none
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None
    """Leader id and epoch, for clients that asked the wrong node (KIP-951)."""


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@lru_cache(maxsize=4096)
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def _decode_single(data: memoryview, position: int, version: int) -> ProduceRequest | None:
    """The shape nearly every request has: no transaction, one topic, one partition. None for any other."""
    try:
        no_transaction, acks, timeout_ms, topic_count = _SINGLE_HEAD.unpack_from(data, position)
        if no_transaction or topic_count != 2:
            return None
        position += _SINGLE_HEAD.size
        topic: str | None = None
        topic_id: UUID | None = None
        if version >= FIRST_WITH_TOPIC_ID:
            topic_id = _uuid(bytes(data[position : position + 16]))
            position += 16
        else:
            size = data[position]
            if not 0 < size < 0x80:
                return None
            topic = str(data[position + 1 : position + size], "utf-8")
            position += size
        partition_count, partition = _SINGLE_PARTITION.unpack_from(data, position)
        if partition_count != 2:
            return None
        position += _SINGLE_PARTITION.size
    except (struct.error, IndexError, UnicodeDecodeError, ValueError):
        return None  # the careful reader says what is wrong
    records = last_records(data, position)
    if records is None:
        return None
    return ProduceRequest(
        None, acks, timeout_ms, [ProducePartition(topic, topic_id, partition, records)], position
    )


def last_records(data: memoryview, position: int) -> memoryview | None:
    """The records whose length stands at `position`; None unless the request ends with them."""
    try:
        length = shift = 0
        while (byte := data[position]) >= 0x80:
            length |= (byte & 0x7F) << shift
            shift += 7
            position += 1
    except IndexError:
        return None
    position += 1
    end = position + (length | byte << shift) - 1
    if end < position or data[end : end + 4].tobytes() != _NO_TAGS_LEFT:
        return None
    return data[position:end]


def decode_produce(buffer: memoryview, position: int, version: int) -> ProduceRequest:
    if version >= FIRST_FLEXIBLE and (single := _decode_single(buffer, position, version)) is not None:
        return single
    reader = Reader(buffer, position)
    flexible = version >= FIRST_FLEXIBLE
    by_id = version >= FIRST_WITH_TOPIC_ID
    transactional_id = reader.string(flexible) if version >= FIRST_SUPPORTED else None
    acks = reader.i16()
    timeout_ms = reader.i32()
    partitions: list[ProducePartition] = []
    for _ in range(reader.array_length(flexible, 2)):
        topic_id = reader.uuid() if by_id else None
        topic = None if by_id else reader.string(flexible)
        for _ in range(reader.array_length(flexible, 5)):
            partition = reader.i32()
            partitions.append(ProducePartition(topic, topic_id, partition, reader.data(flexible)))
            if flexible:
                reader.tags()
        if flexible:
            reader.tags()
    if flexible:
        reader.tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def encode_produce_response(
    version: int,
    correlation_id: int,
    results: list[ProduceResult],
    endpoints: list[NodeEndpoint] | None = None,
) -> bytearray:
    """A whole response frame. Results of one topic must stand together."""
    if len(results) == 1 and version >= FIRST_FLEXIBLE and results[0].error_code == ErrorCode.none:
        return _encode_single(version, correlation_id, results[0])
    flexible = version >= FIRST_FLEXIBLE
    out = bytearray(4)
    out += correlation_id.to_bytes(4, "big", signed=True)
    if flexible:
        out.append(0)
    topics = _by_topic(results)
    put_array_length(out, len(topics), flexible)
    for group in topics:
        first = group[0]
        if version >= FIRST_WITH_TOPIC_ID:
            out += (first.topic_id or UUID(int=0)).bytes
        else:
            put_string(out, first.topic or "", flexible)
        put_array_length(out, len(group), flexible)
        for result in group:
            _put_result(out, result, version)
        if flexible:
            out.append(0)
    if version >= 1:
        out += b"\x00\x00\x00\x00"  # throttle time
    if flexible:
        _put_endpoints(out, endpoints if version >= 10 else None)
    out[0:4] = (len(out) - 4).to_bytes(4, "big")
    return out


def _encode_single(version: int, correlation_id: int, result: ProduceResult) -> bytearray:
    """One partition that went well: what nearly every answer says."""
    out = bytearray(_SINGLE_ANSWER.size)
    if version >= FIRST_WITH_TOPIC_ID:
        out += (result.topic_id or UUID(int=0)).bytes
    else:
        put_string(out, result.topic or "", True)
    out.append(2)
    out += _RESULT_V5.pack(
        result.partition, 0, result.base_offset, result.log_append_time_ms, result.log_start_offset
    )
    out += _SINGLE_TAIL
    _SINGLE_ANSWER.pack_into(out, 0, len(out) - 4, correlation_id, 0, 2)
    return out


class SingleAnswer:
    """Makes answers for one partition that differ in correlation id and offsets alone."""

    __slots__ = ("_head", "_layout", "_size")

    def __init__(self, version: int, result: ProduceResult) -> None:
        frame = _encode_single(version, 0, result)
        self._head = bytes(frame[8 : -_SINGLE_OFFSETS.size - len(_SINGLE_TAIL)])
        self._layout = struct.Struct(f">ii{len(self._head)}sqqq{len(_SINGLE_TAIL)}s")
        self._size = len(frame) - 4

    def frame(
        self, correlation_id: int, base_offset: int, log_append_time_ms: int, log_start_offset: int
    ) -> bytes:
        return self._layout.pack(
            self._size,
            correlation_id,
            self._head,
            base_offset,
            log_append_time_ms,
            log_start_offset,
            _SINGLE_TAIL,
        )


def _by_topic(results: list[ProduceResult]) -> list[list[ProduceResult]]:
    groups: list[list[ProduceResult]] = []
    for result in results:
        if groups and (groups[-1][0].topic, groups[-1][0].topic_id) == (result.topic, result.topic_id):
            groups[-1].append(result)
        else:
            groups.append([result])
    return groups


def _put_result(out: bytearray, result: ProduceResult, version: int) -> None:
    if version >= 5:
        out += _RESULT_V5.pack(
            result.partition,
            result.error_code,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
    elif version >= 2:
        out += _RESULT_V2.pack(
            result.partition, result.error_code, result.base_offset, result.log_append_time_ms
        )
    else:
        out += struct.pack(">ihq", result.partition, result.error_code, result.base_offset)
    if version >= 8:
        flexible = version >= FIRST_FLEXIBLE
        put_array_length(out, 0, flexible)  # errors of single records: batches are taken or refused whole
        put_string(out, result.error_message, flexible)
    if version >= 10 and result.current_leader is not None:
        out += b"\x01\x00"
        put_uvarint(out, _LEADER_TAG.size + 1)
        out += _LEADER_TAG.pack(*result.current_leader) + b"\x00"
    elif version >= FIRST_FLEXIBLE:
        out.append(0)


def _put_endpoints(out: bytearray, endpoints: list[NodeEndpoint] | None) -> None:
    """The tagged section that ends the response: where the leaders named in it can be reached."""
    if not endpoints:
        out.append(0)
        return
    out += b"\x01\x00"
    body = bytearray()
    put_endpoints(body, endpoints)
    put_uvarint(out, len(body))
    out += body


def put_endpoints(out: bytearray, endpoints: list[NodeEndpoint]) -> None:
    put_array_length(out, len(endpoints), True)
    for endpoint in endpoints:
        out += struct.pack(">i", endpoint.node_id)
        put_string(out, endpoint.host, True)
        out += struct.pack(">i", endpoint.port)
        put_string(out, endpoint.rack, True)
        out.append(0)
