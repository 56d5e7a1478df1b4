"""Reads from a partition's log: out of memory or the page cache at once, else in the disk's read thread."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from chronik.model import ErrorCode, RequestError
from chronik.records.batch import BatchHeader, Buffer, headers
from chronik.records.reader import rows_until_fault
from chronik.storage.disk import IoThread
from chronik.storage.log import PartitionLog, TailBatch
from chronik.storage.log_parts import SegmentDamage
from chronik.storage.segment import Segment, WouldBlock
from chronik.storage.soundness import find_fault

log = logging.getLogger(__name__)

_JOIN_BELOW_BYTES: Final = 4096
"""Views smaller than this on average are joined: one copy costs less than many small sends."""
_NEAR_END: Final = 8
MISSED_RECORDS_MAX: Final = 100_000
MISSED_BATCHES_MAX: Final = 32
"""What a look-up by time decodes in vain before it gives up and answers with the last of these batches. Few
batches, since even one with a single record may decompress to as much as the limit of decompression."""


class LogSlice(NamedTuple):
    """Whole batches from the one that holds the wanted offset on; the last may be cut off, as Kafka's may."""

    buffers: list[Buffer]
    size_bytes: int
    aborted: list[tuple[int, int]] | None = None
    """Aborted transactions that touch it, if they came with it; else the log's producers know them."""


EMPTY: Final = LogSlice([], 0)


def check_offset(log_: PartitionLog, offset: int) -> None:
    if not log_.log_start_offset <= offset <= log_.log_end_offset:
        raise RequestError(
            ErrorCode.offset_out_of_range,
            f"{log_.tp} holds offsets {log_.log_start_offset} to {log_.log_end_offset}, not {offset}",
        )


def read_now(
    log_: PartitionLog, offset: int, bytes_max: int, limit_offset: int, *, min_one_batch: bool = True
) -> LogSlice | None:
    """Batches from `offset` up to (not including) `limit_offset`; None if that means waiting for the device.

    With `min_one_batch` the first batch comes back whole even if it is larger than `bytes_max`; without it,
    nothing does then (KIP-74).
    """
    check_offset(log_, offset)
    return _read_now(log_, offset, bytes_max, limit_offset, min_one_batch)


def _read_now(
    log_: PartitionLog, offset: int, bytes_max: int, limit_offset: int, min_one_batch: bool = True
) -> LogSlice | None:
    if offset >= limit_offset:
        return EMPTY
    tail = log_.tail
    if tail and offset >= tail[0].base_offset:
        return _from_tail(tail, offset, bytes_max, limit_offset, min_one_batch)
    if not log_.is_loaded:
        return None
    try:
        found = _from_files(log_, offset, bytes_max, limit_offset, min_one_batch, waiting=False)
    except (WouldBlock, SegmentDamage):
        return None
    if found is None:
        return _from_tail(tail, offset, bytes_max, limit_offset, min_one_batch)
    return found


async def read_cold(
    log_: PartitionLog,
    offset: int,
    bytes_max: int,
    limit_offset: int,
    *,
    min_one_batch: bool = True,
    is_elsewhere: bool = False,
) -> LogSlice:
    """Read in the disk's read thread. Damaged records that another replica has are neither served nor
    skipped: the reader gets not_leader_or_follower, so that it looks for another leader. Nor are those that
    the caller can get elsewhere: it gets SegmentDamage."""
    from_files = partial(_from_files, log_, offset, bytes_max, limit_offset, min_one_batch, waiting=True)
    try:
        found = await log_.disk.run(IoThread.READ, from_files)
    except SegmentDamage as damage:
        if log_.will_be_repaired(damage):
            raise RequestError(ErrorCode.not_leader_or_follower, f"{log_.tp}: {damage}") from None
        if is_elsewhere:
            raise
        found = await log_.disk.run(IoThread.READ, partial(from_files, past_damage=True))
    if found is None:
        return _from_tail(log_.tail, offset, bytes_max, limit_offset, min_one_batch)
    return found


async def read(
    log_: PartitionLog,
    offset: int,
    bytes_max: int,
    limit_offset: int,
    *,
    min_one_batch: bool = True,
    is_elsewhere: bool = False,
) -> LogSlice:
    found = read_now(log_, offset, bytes_max, limit_offset, min_one_batch=min_one_batch)
    if found is not None:
        return found
    how = {"min_one_batch": min_one_batch, "is_elsewhere": is_elsewhere}
    return await read_cold(log_, offset, bytes_max, limit_offset, **how)


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
        # A follower that keeps up wants the last batch.
        place = len(tail) - 1 if tail[-1].base_offset == offset else _place_of(tail, offset)
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
    """Index of the first batch that ends behind `offset`. Readers of the tail are mostly near its end, and
    access to the middle of a deque is slow."""
    place = len(tail)
    for _ in range(_NEAR_END):
        if place == 0 or tail[place - 1].next_offset <= offset:
            return place
        place -= 1
    return bisect_right(tail, offset, hi=place, key=lambda batch: batch.next_offset)


def _from_tail(
    tail: deque[TailBatch], offset: int, bytes_max: int, limit_offset: int, min_one_batch: bool
) -> LogSlice:
    place = _place_of(tail, offset)
    buffers: list[Buffer] = []
    size = 0
    for index in range(place, len(tail)):
        batch = tail[index]
        if batch.next_offset > limit_offset:
            break
        if size + len(batch.view) > bytes_max and (buffers or not min_one_batch):
            break
        buffers.append(batch.view)
        size += len(batch.view)
    if len(buffers) > 1 and size < len(buffers) * _JOIN_BELOW_BYTES:
        buffers = [b"".join(buffers)]
    return LogSlice(buffers, size)


def _from_files(
    log_: PartitionLog,
    offset: int,
    bytes_max: int,
    limit_offset: int,
    min_one_batch: bool,
    *,
    waiting: bool,
    past_damage: bool = False,
) -> LogSlice | None:
    """None if the files have nothing between `offset` and the tail (a gap): the tail has what comes next."""
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
                if not past_damage:
                    _raise_damage(log_, segment)
                    continue
                skipped = _behind_damage(log_, segment, offset, bytes_max, limit_offset, min_one_batch)
                if skipped is not None:
                    return skipped
            continue
        position, header = found
        if header.size_bytes > bytes_max and not min_one_batch:
            return EMPTY
        end = segment.readable_bytes
        if limit_offset < log_.flushed_offset:
            end = _position_of(segment, limit_offset, end, read_at)
        size = min(max(bytes_max, header.size_bytes), end - position)
        if size <= 0:
            return None
        if not waiting:
            return LogSlice([segment.read_now(position, size)], size)
        # Check also bytes that were sound before: they are read from the device again.
        end_offset = _end_offset(log_, segment)
        data = segment.read_sound(position, size, end_offset, is_strict=not past_damage)
        if data:
            return LogSlice([data], len(data))
        segment.note_unsound(position)
        if not past_damage:
            raise SegmentDamage(segment, position, offset)
        skipped = _behind_damage(
            log_, segment, header.last_offset + 1, bytes_max, limit_offset, min_one_batch, position
        )
        if skipped is not None:
            return skipped
    return None


def _raise_damage(log_: PartitionLog, segment: Segment) -> None:
    """An offset was not found in a segment that is not verified yet: raise SegmentDamage if it is damaged."""
    size = segment.readable_bytes
    fault = find_fault(segment.file.read_at, size, segment.base_offset, _end_offset(log_, segment))
    if fault is not None:
        raise SegmentDamage(segment, fault.position, fault.offset)
    segment.note_sound(size)


def _end_offset(log_: PartitionLog, segment: Segment) -> int:
    """All offsets of a segment are below this."""
    following = next((one for one in log_.segments if one.base_offset > segment.base_offset), None)
    return log_.log_end_offset if following is None else following.base_offset


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
    min_one_batch: bool,
    position: int | None = None,
) -> LogSlice | None:
    """The disk lost bytes of this segment and no other replica has them: log it, read behind the damage."""
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
    room, end_offset = segment.written_bytes - following, _end_offset(log_, segment)
    data = segment.read_sound(following, min(bytes_max, room), end_offset)
    if not data:
        data = segment.read_sound(following, room, end_offset)
    kept = [(place, header) for place, header in headers(data) if header.next_offset <= limit_offset]
    if not kept:
        return EMPTY
    if kept[0][1].size_bytes > bytes_max and not min_one_batch:
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

    def find(after: int) -> _Candidate | None:
        for segment in log_.segments:
            if segment.base_offset >= tail_start:
                break
            found = _candidate_in(log_, segment, timestamp_ms, after)
            if found is not None:
                return found
        return _candidate_among(log_, tail, timestamp_ms, after)

    found = await _search(log_, find)
    return found if found is not None and found.offset < limit_offset else None


async def offset_of_max_timestamp(log_: PartitionLog) -> TimestampedOffset | None:
    """The first record with the highest timestamp (KIP-734)."""

    def find(after: int) -> _Candidate | None:
        for segment in log_.segments:
            _ = segment.time_index  # a sealed segment learns its highest timestamp from there
        best = max(log_.segments, key=lambda segment: segment.max_timestamp)
        if best.max_timestamp < 0:
            return None
        tail = [batch for batch in list(log_.tail) if batch.segment is best]
        found = _candidate_among(log_, tail, best.max_timestamp, after)
        return found if found is not None else _candidate_in(log_, best, best.max_timestamp, after)

    return await _search(log_, find)


class _Candidate(NamedTuple):
    """A batch whose header promises a record with the timestamp that is sought."""

    batch: Buffer
    header: BatchHeader
    timestamp_ms: int


async def _search(log_: PartitionLog, find: Callable[[int], _Candidate | None]) -> TimestampedOffset | None:
    """`find` gives the first candidate whose base offset is higher than what it is called with.

    Files are read where all of them are (`IoThread.READ`): segments load their indexes when first asked, and
    two threads must not do that at once. Records are decoded where that may take long.
    """
    after = -1
    missed: BatchHeader | None = None
    missed_records = missed_batches = 0
    while missed_records < MISSED_RECORDS_MAX and missed_batches < MISSED_BATCHES_MAX:
        candidate = await log_.disk.run(IoThread.READ, partial(find, after))
        if candidate is None:
            return None
        found = await log_.disk.run(IoThread.RECORDS, partial(_search_batch, log_, *candidate))
        if found is not None:
            return found
        missed = candidate.header
        after = missed.base_offset
        missed_records += missed.record_count
        missed_batches += 1
    # Headers claim what no record has. A reader that starts at the last of these batches misses nothing, and
    # going on would decode every batch of such a log for one request.
    return None if missed is None else _start_of(log_, missed)


def _candidate_in(log_: PartitionLog, segment: Segment, timestamp_ms: int, after: int) -> _Candidate | None:
    for position, header in segment.scan(segment.start_for_time(timestamp_ms)):
        if _promises(log_, header, timestamp_ms, after):
            return _Candidate(segment.file.read_at(position, header.size_bytes), header, timestamp_ms)
    return None


def _candidate_among(
    log_: PartitionLog, tail: Iterable[TailBatch], timestamp_ms: int, after: int
) -> _Candidate | None:
    for batch in tail:
        if _promises(log_, batch.header, timestamp_ms, after):
            return _Candidate(batch.view, batch.header, timestamp_ms)
    return None


def _promises(log_: PartitionLog, header: BatchHeader, timestamp_ms: int, after: int) -> bool:
    return (
        header.max_timestamp >= timestamp_ms
        and header.base_offset > after
        and header.next_offset > log_.log_start_offset
        and not header.is_control
        and header.record_count > 0
    )


def _search_batch(
    log_: PartitionLog, batch: Buffer, header: BatchHeader, timestamp_ms: int
) -> TimestampedOffset | None:
    return first_at_or_after(batch, header, timestamp_ms, log_.log_start_offset)


def first_at_or_after(
    batch: Buffer, header: BatchHeader, timestamp_ms: int, log_start_offset: int
) -> TimestampedOffset | None:
    """Blocking: the batch's first record from the log's start on that is at least so young."""
    try:
        for offset, record_timestamp_ms, *_ in rows_until_fault(batch):
            if record_timestamp_ms >= timestamp_ms and offset >= log_start_offset:
                return TimestampedOffset(offset, record_timestamp_ms, header.leader_epoch)
    except RequestError:  # what is behind the fault may be what is sought
        first = max(header.base_offset, log_start_offset)
        return TimestampedOffset(first, header.max_timestamp, header.leader_epoch)
    return None


def _start_of(log_: PartitionLog, header: BatchHeader) -> TimestampedOffset:
    first = max(header.base_offset, log_.log_start_offset)
    return TimestampedOffset(first, header.max_timestamp, header.leader_epoch)


async def timestamp_before(log_: PartitionLog, offset: int) -> int | None:
    """The highest timestamp of the batch that holds the last record before `offset`; None if none does."""
    found = await read(log_, offset - 1, 1, log_.log_end_offset)
    header = next((header for buffer in found.buffers for _, header in headers(buffer)), None)
    return header.max_timestamp if header is not None and header.base_offset < offset else None


def aborted_transactions(log_: PartitionLog, fetch_offset: int, found: LogSlice) -> list[tuple[int, int]]:
    """Producer id and first offset of the aborted transactions that touch what was read."""
    producers = log_.producers
    if found.aborted is not None:
        return found.aborted
    if producers is None or not found.size_bytes:
        return []
    end = 0
    for buffer in found.buffers:
        for _, header in headers(buffer):
            end = header.next_offset
    upper = max(fetch_offset + 1, end)
    return [(txn.producer_id, txn.first_offset) for txn in producers.aborted_between(fetch_offset, upper)]


def diverging_epoch(log_: PartitionLog, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
    """Where this log parts from that of a reader whose last batch had `last_fetched_epoch` (KIP-595)."""
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = log_.epochs.end_offset(last_fetched_epoch, log_.log_end_offset)
    if epoch < 0 or (epoch >= last_fetched_epoch and end_offset >= fetch_offset):
        return None
    return epoch, end_offset
