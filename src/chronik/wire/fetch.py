"""Fetch, by hand: record batches go from log to socket as the buffers they already are."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from chronik.model import NO_EPOCH, ErrorCode
from chronik.records.batch import Buffer
from chronik.wire.cursor import Reader, put_array_length, put_string, put_uvarint
from chronik.wire.produce import NodeEndpoint, put_endpoints

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_ID: Final = 13
NO_ID: Final = UUID(int=0)

_HEAD_V4: Final = struct.Struct(">ihqq")
_HEAD_V5: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")


class FetchPartition(NamedTuple):
    topic: str
    """Empty where the request names topics by id."""
    topic_id: UUID
    """Zero where the request names topics by name."""
    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int


class ForgottenPartition(NamedTuple):
    topic: str
    topic_id: UUID
    partition: int


class FetchRequest(NamedTuple):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[ForgottenPartition]
    rack_id: str


@dataclass(slots=True)
class FetchResult:
    topic: str
    topic_id: UUID
    partition: int
    error_code: int = ErrorCode.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    """Producer id and first offset of aborted transactions; None unless read_committed asked."""
    preferred_read_replica: int = -1
    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    diverging: tuple[int, int] | None = None
    """Epoch and end offset where this log parts from the reader's (KIP-595)."""
    current_leader: tuple[int, int] | None = None


def decode_fetch(buffer: memoryview, position: int, version: int) -> FetchRequest:
    reader = Reader(buffer, position)
    flexible = version >= FIRST_FLEXIBLE
    replica_id = reader.i32() if version < 15 else -1
    max_wait_ms = reader.i32()
    min_bytes = reader.i32()
    max_bytes = reader.i32()
    isolation_level = reader.i8()
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id = reader.i32()
        session_epoch = reader.i32()
    partitions = _decode_partitions(reader, version, flexible)
    forgotten = _decode_forgotten(reader, version, flexible) if version >= 7 else []
    rack_id = (reader.string(flexible) or "") if version >= 11 else ""
    if flexible:
        tags = reader.tags()
        if tags and version >= 15 and 1 in tags:
            replica_id = Reader(tags[1], 0).i32()
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        partitions,
        forgotten,
        rack_id,
    )


def _decode_partitions(reader: Reader, version: int, flexible: bool) -> list[FetchPartition]:
    by_id = version >= FIRST_WITH_TOPIC_ID
    found: list[FetchPartition] = []
    for _ in range(reader.array_length(flexible, 2)):
        topic_id = reader.uuid() if by_id else NO_ID
        topic = "" if by_id else reader.string(flexible) or ""
        for _ in range(reader.array_length(flexible, 16)):
            partition = reader.i32()
            current_leader_epoch = reader.i32() if version >= 9 else NO_EPOCH
            fetch_offset = reader.i64()
            last_fetched_epoch = reader.i32() if version >= 12 else NO_EPOCH
            if version >= 5:
                reader.i64()  # log start offset: only followers of Apache Kafka tell it
            partition_max_bytes = reader.i32()
            if flexible:
                reader.tags()
            found.append(
                FetchPartition(
                    topic,
                    topic_id,
                    partition,
                    fetch_offset,
                    partition_max_bytes,
                    current_leader_epoch,
                    last_fetched_epoch,
                )
            )
        if flexible:
            reader.tags()
    return found


def _decode_forgotten(reader: Reader, version: int, flexible: bool) -> list[ForgottenPartition]:
    by_id = version >= FIRST_WITH_TOPIC_ID
    found: list[ForgottenPartition] = []
    for _ in range(reader.array_length(flexible, 2)):
        topic_id = reader.uuid() if by_id else NO_ID
        topic = "" if by_id else reader.string(flexible) or ""
        for _ in range(reader.array_length(flexible, 4)):
            found.append(ForgottenPartition(topic, topic_id, reader.i32()))
        if flexible:
            reader.tags()
    return found


def encode_fetch_response(
    version: int,
    correlation_id: int,
    results: list[FetchResult],
    *,
    error_code: int = ErrorCode.none,
    session_id: int = 0,
    endpoints: list[NodeEndpoint] | None = None,
) -> list[Buffer]:
    """A response frame as buffers to be written one after the other. Results of a topic stand together."""
    flexible = version >= FIRST_FLEXIBLE
    head = bytearray(4)
    head += correlation_id.to_bytes(4, "big", signed=True)
    if flexible:
        head.append(0)
    head += b"\x00\x00\x00\x00"  # throttle time
    if version >= 7:
        head += struct.pack(">hi", error_code, session_id)
    groups = _by_topic(results)
    put_array_length(head, len(groups), flexible)
    out: list[Buffer] = []
    current = head
    for group in groups:
        if version >= FIRST_WITH_TOPIC_ID:
            current += group[0].topic_id.bytes
        else:
            put_string(current, group[0].topic, flexible)
        put_array_length(current, len(group), flexible)
        for result in group:
            _put_partition(current, result, version)
            if result.buffers:
                out.append(current)
                out += result.buffers
                current = bytearray()
            if flexible:
                _put_partition_tags(current, result)
        if flexible:
            current.append(0)
    if flexible:
        _put_tail_tags(current, endpoints if version >= 16 else None)
    out.append(current)
    head[0:4] = (sum(map(len, out)) - 4).to_bytes(4, "big")
    return out


def _by_topic(results: list[FetchResult]) -> list[list[FetchResult]]:
    groups: list[list[FetchResult]] = []
    for result in results:
        if groups and groups[-1][0].topic == result.topic and groups[-1][0].topic_id == result.topic_id:
            groups[-1].append(result)
        else:
            groups.append([result])
    return groups


def _put_partition(out: bytearray, result: FetchResult, version: int) -> None:
    """Everything of a partition up to its records, whose length it announces."""
    flexible = version >= FIRST_FLEXIBLE
    if version >= 5:
        out += _HEAD_V5.pack(
            result.partition,
            result.error_code,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
        )
    else:
        out += _HEAD_V4.pack(
            result.partition, result.error_code, result.high_watermark, result.last_stable_offset
        )
    if result.aborted is None:
        put_array_length(out, -1, flexible)
    else:
        put_array_length(out, len(result.aborted), flexible)
        for producer_id, first_offset in result.aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += struct.pack(">i", result.preferred_read_replica)
    if flexible:
        put_uvarint(out, result.size_bytes + 1)
    else:
        out += struct.pack(">i", result.size_bytes)


def _put_partition_tags(out: bytearray, result: FetchResult) -> None:
    count = (result.diverging is not None) + (result.current_leader is not None)
    out.append(count)
    if result.diverging is not None:
        out += b"\x00\x0d" + struct.pack(">iq", *result.diverging) + b"\x00"
    if result.current_leader is not None:
        out += b"\x01\x09" + struct.pack(">ii", *result.current_leader) + b"\x00"


def _put_tail_tags(out: bytearray, endpoints: list[NodeEndpoint] | None) -> None:
    if not endpoints:
        out.append(0)
        return
    body = bytearray()
    put_endpoints(body, endpoints)
    out += b"\x01\x00"
    put_uvarint(out, len(body))
    out += body
