"""Reads from a partition's log: out of memory or the page cache at once, else in the disk's read lane."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple

from chronik.model import ErrorCode, RequestError
from chronik.records.batch import BatchHeader, Buffer, headers
from chronik.records.reader import read_records
from chronik.storage.disk import Lane
from chronik.storage.log import PartitionLog, TailBatch
from chronik.storage.segment import Segment, WouldBlock

log = logging.getLogger(__name__)

_JOIN_BELOW_BYTES: Final = 4096
"""Views smaller than this on average are joined: one copy costs less than many small sends."""
_NEAR_END: Final = 8


class LogSlice(NamedTuple):
    """Whole batches from the one that holds the wanted offset on; the last may be cut off, as Kafka's may."""

    buffers: list[Buffer]
    size_bytes: int


EMPTY: Final = LogSlice([], 0)


def check_offset(log_: PartitionLog, offset: int) -> None:
    if not log_.log_start_offset <= offset <= log_.log_end_offset:
        raise RequestError(
            ErrorCode.offset_out_of_range,
            f"{log_.tp} holds offsets {log_.log_start_offset} to {log_.log_end_offset}, not {offset}",
        )


def read_now(log_: PartitionLog, offset: int, bytes_max: int, limit_offset: int) -> LogSlice | None:
    """Batches from `offset` up to (not including) `limit_offset`; None if that means waiting for the device.

    At least one whole batch comes back even if it is larger than `bytes_max` (KIP-74).
    """
    check_offset(log_, offset)
    return _read_now(log_, offset, bytes_max, limit_offset)


def _read_now(log_: PartitionLog, offset: int, bytes_max: int, limit_offset: int) -> LogSlice | None:
    if offset >= limit_offset:
        return EMPTY
    tail = log_.tail
    if tail and offset >= tail[0].base_offset:
        return _from_tail(tail, offset, bytes_max, limit_offset)
    if not log_.is_loaded:
        return None
    try:
        found = _from_files(log_, offset, bytes_max, limit_offset, waiting=False)
    except WouldBlock:
        return None
    return found if found.size_bytes else _from_tail(tail, offset, bytes_max, limit_offset)


async def read_cold(log_: PartitionLog, offset: int, bytes_max: int, limit_offset: int) -> LogSlice:
    found = await log_.disk.run(
        Lane.READ, lambda: _from_files(log_, offset, bytes_max, limit_offset, waiting=True)
    )
    # Files may have nothing between `offset` and the tail (a gap): then the tail has what comes next.
    return found if found.size_bytes else _from_tail(log_.tail, offset, bytes_max, limit_offset)


async def read(log_: PartitionLog, offset: int, bytes_max: int, limit_offset: int) -> LogSlice:
    found = read_now(log_, offset, bytes_max, limit_offset)
    return found if found is not None else await read_cold(log_, offset, bytes_max, limit_offset)


class BatchRun(NamedTuple):
    """Whole batches, for a follower: none is cut off."""

    buffers: list[Buffer]
    size_bytes: int
    next_offset: int


def read_run_now(log_: PartitionLog, offset: int, bytes_max: int) -> BatchRun | None:
    """Whole batches from `offset` on, as far as `bytes_max` allows; None if only a wait helps.

    A log may start inside a batch. A follower needs the whole of it, so that batch can be read from its first
    offset; nothing else before the log's start can (offset_out_of_range).
    """
    tail = log_.tail
    if tail and offset >= tail[0].base_offset:
        place = _place_of(tail, offset)
        buffers: list[Buffer] = []
        size, end = 0, offset
        for index in range(place, len(tail)):
            batch = tail[index]
            if buffers and size + len(batch.view) > bytes_max:
                break
            buffers.append(batch.view)
            size += len(batch.view)
            end = batch.next_offset
        return BatchRun(buffers, size, end)
    found = _read_now(log_, offset, bytes_max, log_.log_end_offset)
    return None if found is None else _run_from(log_, found, offset)


async def read_run(log_: PartitionLog, offset: int, bytes_max: int) -> BatchRun:
    found = read_run_now(log_, offset, bytes_max)
    if found is not None:
        return found
    return _run_from(log_, await read_cold(log_, offset, bytes_max, log_.log_end_offset), offset)


def _run_from(log_: PartitionLog, found: LogSlice, offset: int) -> BatchRun:
    run = _whole(found, offset)
    if offset < log_.log_start_offset:
        first = next((header.base_offset for _, header in headers(run.buffers[0])), -1) if run.buffers else -1
        if first != offset:
            check_offset(log_, offset)
    return run


def _whole(found: LogSlice, offset: int) -> BatchRun:
    """Cut a slice behind its last whole batch."""
    data = found.buffers[0] if len(found.buffers) == 1 else b"".join(found.buffers)
    end, next_offset = 0, offset
    for position, header in headers(data):
        end, next_offset = position + header.size_bytes, header.next_offset
    return BatchRun([memoryview(data)[:end]] if end else [], end, next_offset)


def _place_of(tail: deque[TailBatch], offset: int) -> int:
    """Index of the first batch that ends behind `offset`. Who reads out of memory is mostly near the end, and
    to step through the middle of a deque takes long."""
    place = len(tail)
    for _ in range(_NEAR_END):
        if place == 0 or tail[place - 1].next_offset <= offset:
            return place
        place -= 1
    return bisect_right(tail, offset, hi=place, key=lambda batch: batch.next_offset)


def _from_tail(tail: deque[TailBatch], offset: int, bytes_max: int, limit_offset: int) -> LogSlice:
    place = _place_of(tail, offset)
    buffers: list[Buffer] = []
    size = 0
    for index in range(place, len(tail)):
        batch = tail[index]
        if batch.next_offset > limit_offset or (buffers and size + len(batch.view) > bytes_max):
            break
        buffers.append(batch.view)
        size += len(batch.view)
    if len(buffers) > 1 and size < len(buffers) * _JOIN_BELOW_BYTES:
        buffers = [b"".join(buffers)]
    return LogSlice(buffers, size)


def _from_files(
    log_: PartitionLog, offset: int, bytes_max: int, limit_offset: int, *, waiting: bool
) -> LogSlice:
    segments = list(log_.segments)
    for segment in segments[log_.segment_for(offset) :]:
        if segment.base_offset >= limit_offset or segment.readable_bytes == 0:
            break
        if not waiting and not segment.readable_now:
            raise WouldBlock
        read_at = None if waiting else segment.read_now
        found = segment.locate(offset, read_at)
        if found is None:
            if segment.verified_bytes < segment.written_bytes:
                skipped = _behind_damage(log_, segment, offset, bytes_max, limit_offset)
                if skipped is not None:
                    return skipped
            continue
        position, header = found
        end = segment.readable_bytes
        if limit_offset < log_.flushed_offset:
            end = _position_of(segment, limit_offset, end, read_at)
        size = min(max(bytes_max, header.size_bytes), end - position)
        if size <= 0:
            return EMPTY
        if not waiting:
            return LogSlice([segment.read_now(position, size)], size)
        if segment.verified_bytes >= position + size:
            return LogSlice([segment.file.read_at(position, size)], size)
        data = segment.read_sound(position, size)
        if data:
            return LogSlice([data], len(data))
        skipped = _behind_damage(log_, segment, header.last_offset + 1, bytes_max, limit_offset, position)
        if skipped is not None:
            return skipped
    return EMPTY


def _position_of(segment: Segment, offset: int, end: int, read_at: object) -> int:
    found = segment.locate(offset, read_at)  # type: ignore[arg-type]  # None or the segment's own read_now
    if found is None:
        return end
    position, header = found
    return position if header.base_offset >= offset or header.last_offset >= offset else end


def _behind_damage(
    log_: PartitionLog,
    segment: Segment,
    offset: int,
    bytes_max: int,
    limit_offset: int,
    position: int | None = None,
) -> LogSlice | None:
    """The disk lost bytes of this segment: say so, and serve what can be read behind them."""
    start = segment.offset_index.position_for(offset) if position is None else position
    following = segment.next_sound_position(start)
    log.error(
        "%s: %s is damaged near byte %d; records there are lost on this disk, reading goes on %s",
        log_.tp,
        segment.path,
        start,
        "in the next segment" if following is None else f"at byte {following}",
    )
    if following is None:
        return None
    data = segment.read_sound(following, min(bytes_max, segment.written_bytes - following))
    if not data:
        data = segment.read_sound(following, segment.written_bytes - following)
    kept = [(place, header) for place, header in headers(data) if header.next_offset <= limit_offset]
    if not kept:
        return EMPTY
    last_place, last = kept[-1]
    end = last_place + last.size_bytes
    return LogSlice([data[:end]], end)


class TimestampedOffset(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int


async def offset_for_timestamp(
    log_: PartitionLog, timestamp_ms: int, limit_offset: int
) -> TimestampedOffset | None:
    """The first record at or behind `log_start_offset` whose timestamp is at least `timestamp_ms`."""
    tail = list(log_.tail)
    tail_start = tail[0].base_offset if tail else log_.log_end_offset

    def search() -> TimestampedOffset | None:
        for segment in log_.segments:
            if segment.base_offset >= tail_start:
                break
            found = _search_segment(log_, segment, timestamp_ms)
            if found is not None:
                return found
        for batch in tail:
            if batch.header.max_timestamp >= timestamp_ms:
                found = _search_batch(log_, batch.view, batch.header, timestamp_ms)
                if found is not None:
                    return found
        return None

    found = await log_.disk.run(Lane.READ, search)
    return found if found is not None and found.offset < limit_offset else None


def _search_segment(log_: PartitionLog, segment: Segment, timestamp_ms: int) -> TimestampedOffset | None:
    for position, header in segment.scan(segment.start_for_time(timestamp_ms)):
        if header.max_timestamp >= timestamp_ms:
            batch = segment.file.read_at(position, header.size_bytes)
            found = _search_batch(log_, batch, header, timestamp_ms)
            if found is not None:
                return found
    return None


def _search_batch(
    log_: PartitionLog, batch: Buffer, header: BatchHeader, timestamp_ms: int
) -> TimestampedOffset | None:
    if header.next_offset <= log_.log_start_offset or header.is_control:
        return None
    for record in read_records(batch):
        if record.timestamp_ms >= timestamp_ms and record.offset >= log_.log_start_offset:
            return TimestampedOffset(record.offset, record.timestamp_ms, header.leader_epoch)
    return None


async def offset_of_max_timestamp(log_: PartitionLog) -> TimestampedOffset | None:
    """The first record with the highest timestamp (KIP-734)."""

    def search() -> TimestampedOffset | None:
        for segment in log_.segments:
            _ = segment.time_index  # a sealed segment learns its highest timestamp from there
        best = max(log_.segments, key=lambda segment: segment.max_timestamp)
        if best.max_timestamp < 0:
            return None
        tail = [batch for batch in list(log_.tail) if batch.segment is best]
        for batch in tail:
            if batch.header.max_timestamp == best.max_timestamp:
                return _search_batch(log_, batch.view, batch.header, best.max_timestamp)
        return _search_segment(log_, best, best.max_timestamp)

    return await log_.disk.run(Lane.READ, search)
