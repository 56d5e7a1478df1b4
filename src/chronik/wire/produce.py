"""Produce, by hand: the request is read without copying records, the response is packed at once.

Versions 0 to 2 are understood only to be refused in their own format: their message formats are gone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from chronik.model import ErrorCode, RecordError, TopicPartition
from chronik.wire.cursor import Reader, put_array_length, put_string, put_uvarint

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_ID: Final = 13
FIRST_SUPPORTED: Final = 3
FIRST_WITH_LOG_START: Final = 5

_RESULT_V2: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_LEADER_TAG: Final = struct.Struct(">ii")
_I32: Final = struct.Struct(">i")
_NO_TAGS_LEFT: Final = b"\x00\x00\x00"
"""The empty tagged sections of partition, topic and request that end a request."""


class ProduceTarget(NamedTuple):
    """Where a batch goes."""

    tp: TopicPartition
    """The topic name is empty if the request gives a topic id that is not known."""
    topic_id: UUID | None


class ProduceHead(NamedTuple):
    """What a request says besides its records; the same for many requests of a producer."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    targets: list[ProduceTarget]
    records_at: int = 0
    """Where the length of the records stands in a request for one partition that ends with them; else 0."""
    is_flexible: bool = True


class ProduceRequest(NamedTuple):
    head: ProduceHead
    records: list[memoryview | None]
    """One for each target."""


@dataclass(slots=True)
class ProduceResult:
    """The answer for one partition."""

    tp: TopicPartition
    topic_id: UUID | None
    error_code: int = ErrorCode.none
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[RecordError] = ()
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


def decode_produce(buffer: memoryview, position: int, version: int) -> ProduceRequest:
    reader = Reader(buffer, position)
    flexible = version >= FIRST_FLEXIBLE
    by_id = version >= FIRST_WITH_TOPIC_ID
    transactional_id = reader.string(flexible) if version >= FIRST_SUPPORTED else None
    acks = reader.i16()
    timeout_ms = reader.i32()
    targets: list[ProduceTarget] = []
    records: list[memoryview | None] = []
    records_at = records_end = 0
    for _ in range(reader.array_length(flexible, 2)):
        topic_id = _uuid(reader.take(16).tobytes()) if by_id else None
        topic = "" if by_id else reader.string(flexible) or ""
        for _ in range(reader.array_length(flexible, 5)):
            targets.append(ProduceTarget(TopicPartition(topic, reader.i32()), topic_id))
            records_at = reader.position
            records.append(reader.data(flexible))
            records_end = reader.position
            if flexible:
                reader.tags()
        if flexible:
            reader.tags()
    if flexible:
        reader.tags()
    tail_bytes = len(_NO_TAGS_LEFT) if flexible else 0
    if len(records) != 1 or not records[0] or reader.end - records_end != tail_bytes:
        records_at = 0
    head = ProduceHead(transactional_id, acks, timeout_ms, targets, records_at, flexible)
    return ProduceRequest(head, records)


def last_records(frame: memoryview, position: int, is_flexible: bool) -> memoryview | None:
    """The records whose length stands at `position`; None unless the request ends with them."""
    try:
        if is_flexible:
            length = shift = 0
            while (byte := frame[position]) >= 0x80 and shift < 28:
                length |= (byte & 0x7F) << shift
                shift += 7
                position += 1
            position += 1
            end = position + (length | byte << shift) - 1
            if frame[end : end + 4].tobytes() != _NO_TAGS_LEFT:
                return None
        else:
            (length,) = _I32.unpack_from(frame, position)
            position += 4
            end = position + length
            if end != len(frame):
                return None
    except (IndexError, struct.error):
        return None
    return frame[position:end] if end > position else None


def encode_produce_response(
    version: int,
    correlation_id: int,
    results: list[ProduceResult],
    endpoints: list[NodeEndpoint] | None = None,
) -> bytearray:
    """A whole response frame. Results of one topic must stand together."""
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
            put_string(out, first.tp.topic, flexible)
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


class AnswerTemplate:
    """The response to a request with one batch that was appended. `frame` fills in the fields that vary."""

    __slots__ = ("_head", "_layout", "_numbers", "_size", "_tail")

    def __init__(self, version: int, target: ProduceTarget) -> None:
        frame = bytes(encode_produce_response(version, 0, [ProduceResult(*target)]))
        self._numbers = 3 if version >= FIRST_WITH_LOG_START else 2
        before, _, self._tail = frame.rpartition(b"\xff" * 8 * self._numbers)  # -1 each
        self._head = before[8:]
        self._size = len(frame) - 4
        self._layout = struct.Struct(f">ii{len(self._head)}s{self._numbers}q{len(self._tail)}s")

    def frame(self, correlation_id: int, taken: tuple[int, int, int]) -> bytes:
        """`taken`: base offset, log append time and log start offset; early versions lack the last."""
        numbers = taken[: self._numbers]
        return self._layout.pack(self._size, correlation_id, self._head, *numbers, self._tail)


def _by_topic(results: list[ProduceResult]) -> list[list[ProduceResult]]:
    groups: list[list[ProduceResult]] = []
    for result in results:
        if groups and (groups[-1][0].tp.topic, groups[-1][0].topic_id) == (result.tp.topic, result.topic_id):
            groups[-1].append(result)
        else:
            groups.append([result])
    return groups


def _put_result(out: bytearray, result: ProduceResult, version: int) -> None:
    if version >= FIRST_WITH_LOG_START:
        out += _RESULT_V5.pack(
            result.tp.partition,
            result.error_code,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
    elif version >= 2:
        out += _RESULT_V2.pack(
            result.tp.partition, result.error_code, result.base_offset, result.log_append_time_ms
        )
    else:
        out += struct.pack(">ihq", result.tp.partition, result.error_code, result.base_offset)
    if version >= 8:
        flexible = version >= FIRST_FLEXIBLE
        put_array_length(out, len(result.record_errors), flexible)
        for batch_index, message in result.record_errors:
            out += batch_index.to_bytes(4, "big")
            put_string(out, message, flexible)
            if flexible:
                out.append(0)
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
