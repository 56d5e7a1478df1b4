"""Log compaction: of each key, the last record; the log's offsets and order stay as they are.

Two passes over closed segments that no checkpoint cuts and that every reader may see (below the last stable
offset). The first notes the last offset of each key in the part that was not compacted before. The second
writes every segment again without the records whose key has a newer one, joins small neighbouring segments
and swaps the files (`swap.py`). Both are generators: each step is short, and the caller decides when the next
one runs.

Kept, besides the newest record of each key:
- a tombstone, and the marker of a transaction whose records are all gone, until the delete horizon that the
  first compaction wrote into their batch (KIP-534);
- the marker of a transaction of which a batch is left. Records of an aborted transaction are removed at once;
- the last batch of each known producer, without records if need be, so that replicas know its sequence;
- the last batch of the compacted part, without records if need be, so that replicas have the same end offset;
- all records after the offset at which the key map was full. The next compaction goes on there;
- a batch that cannot be decoded although its checksum is right. It is kept as it is, and its keys, which
  nobody can read, remove nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from chronik.model import RequestError, StorageError
from chronik.records.batch import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    check_batch,
    read_header,
)
from chronik.records.body import body_of
from chronik.records.editing import (
    RawRecord,
    delete_horizon_ms,
    empty_batch,
    keep_records,
    keys_of,
    raw_records,
)
from chronik.records.reader import Unreadable, unreadable_batch
from chronik.storage.keymap import KeyMap
from chronik.storage.log import PartitionLog
from chronik.storage.producer_state import AbortedTxn, ProducerStates
from chronik.storage.segment import Segment
from chronik.storage.swap import CleanedSegment

_READ_BYTES: Final = 256 * 1024
_STEP_RECORDS: Final = 60
"""Records per step, about. A step blocks requests for about an eighth of a millisecond."""
_BATCH_WEIGHT: Final = 4
"""Fixed cost of a batch, on top of its records and in units of one record."""
_STEP_BYTES: Final = 16 * 1024

Step = Generator[int, None, None]
"""Yields the bytes read and written since the last yield."""


class LastOfProducer(NamedTuple):
    """The last batch of a producer. Compaction keeps it, since it carries the producer's sequence."""

    producer_epoch: int
    last_offset: int | None
    """Last offset of the producer's last data batch; None if only a marker is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything a compaction works with, as of its beginning."""

    log: PartitionLog
    segments: Sequence[Segment]
    """The log's first segments, without a gap; all closed, synced, below the last stable offset."""
    end_offset: int
    """Base offset of the segment that follows them."""
    first_dirty_offset: int
    delete_retention_ms: int
    now_ms: int
    map_bytes_max: int
    segment_bytes: int
    segment_index_bytes: int


class SegmentGroup(NamedTuple):
    """Neighbours that become one segment."""

    segments: list[Segment]
    end_offset: int


@dataclass(slots=True)
class CompactionResult:
    first_dirty_offset: int
    """Everything before this offset is compacted."""
    horizon_ms: int = -1
    """Latest delete horizon of the tombstones and markers that were kept; -1 if there are none."""
    records_removed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    settled_aborts: set[int] = field(default_factory=set)
    """Offsets of abort markers whose transactions have no records left."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Batches that were left as they are because they cannot be decoded."""


class CompactedTransactions:
    """Tracks the transactions of a log. Call it once for each batch, in offset order."""

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for txn in sorted(aborted, key=lambda txn: txn.first_offset):
            self._aborted.setdefault(txn.producer_id, []).append((txn.first_offset, txn.last_offset))
        self._with_data: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this data batch belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._with_data.add(header.producer_id)
        ranges = self._aborted.get(header.producer_id)
        if ranges is None:
            return False
        place = bisect_right(ranges, header.base_offset, key=lambda one: one[0]) - 1
        return place >= 0 and header.base_offset <= ranges[place][1]

    def is_alone(self, header: BatchHeader) -> bool:
        """Whether no data batch of this marker's transaction precedes it in the log."""
        had_data = header.producer_id in self._with_data
        self._with_data.discard(header.producer_id)
        return not had_data


def last_of_producers(producers: ProducerStates | None) -> dict[int, LastOfProducer]:
    return {
        entry.producer_id: LastOfProducer(
            entry.producer_epoch, entry.batches[-1].last_offset if entry.batches else None
        )
        for entry in producers or ()
    }


class Compaction:
    """One compaction of one log. Drive `build_map`, then for each of `groups` `clean` and `commit`."""

    def __init__(
        self, task: Task, aborted: Sequence[AbortedTxn], producers: Mapping[int, LastOfProducer]
    ) -> None:
        self._task = task
        self._aborted = aborted
        self._producers = producers
        self._transactions = CompactedTransactions(aborted)
        self._keys = KeyMap(task.map_bytes_max)
        self._changed = False
        self._out: CleanedSegment | None = None
        self.result = CompactionResult(task.first_dirty_offset)

    # --- first pass --------------------------------------------------------------------------------

    def build_map(self) -> Step:
        """The last offset of each key from the first dirty offset on, as far as there is room."""
        task, keys = self._task, self._keys
        meter = _StepMeter()
        first = task.first_dirty_offset
        keys.latest_offset = first - 1
        ends = [segment.base_offset for segment in task.segments[1:]] + [task.end_offset]
        dirty = [segment for segment, end in zip(task.segments, ends, strict=True) if end > first]
        for header, batch in self._batches(dirty):
            if header.last_offset < first or header.is_control or self._transactions.is_aborted(header):
                continue
            if keys.is_full:
                break
            found = yield from self._keys_in(header, batch, meter)
            for start in range(0, len(found), _STEP_RECORDS):
                keys.put(header.base_offset, found[start : start + _STEP_RECORDS])
                yield from meter.count(min(header.record_count, _STEP_RECORDS), 0)
            keys.latest_offset = header.last_offset
            yield from meter.count(0, header.size_bytes)
        else:
            keys.latest_offset = task.end_offset - 1
        self._transactions = CompactedTransactions(self._aborted)
        self.result.first_dirty_offset = keys.latest_offset + 1

    def _keys_in(
        self, header: BatchHeader, batch: Buffer, meter: _StepMeter
    ) -> Generator[int, None, list[tuple[int, bytes]]]:
        """The keys of a batch: all of them, or none if any part of it cannot be read."""
        found: list[tuple[int, bytes]] = []
        try:
            records = keys_of(header, body_of(header, batch))
            for _ in range(0, header.record_count, _STEP_RECORDS):
                found += islice(records, _STEP_RECORDS)
                yield from meter.count(min(header.record_count, _STEP_RECORDS) // 2, 0)
        except RequestError as error:
            self.result.unreadable.append(unreadable_batch(header, error))
            return []
        return found

    # --- second pass -------------------------------------------------------------------------------

    def groups(self) -> list[SegmentGroup]:
        """Neighbours that together are no larger than one segment may be."""
        task = self._task
        groups: list[SegmentGroup] = []
        size = index_size = 0
        ends = [segment.base_offset for segment in task.segments[1:]] + [task.end_offset]
        for segment, end in zip(task.segments, ends, strict=True):
            if segment.base_offset > self._keys.latest_offset:
                break
            index_bytes = _index_bytes(task.log, segment)
            if (
                groups
                and size + segment.size_bytes <= task.segment_bytes
                and index_size + index_bytes <= task.segment_index_bytes
                and end - groups[-1].segments[0].base_offset <= 0x7FFFFFFF
            ):
                groups[-1] = SegmentGroup([*groups[-1].segments, segment], end)
                size, index_size = size + segment.size_bytes, index_size + index_bytes
            else:
                groups.append(SegmentGroup([segment], end))
                size, index_size = segment.size_bytes, index_bytes
        return groups

    def clean(self, group: Sequence[Segment], *, is_last: bool) -> Step:
        """Write what stays of these segments into one new one, beside them."""
        log = self._task.log
        out = CleanedSegment(
            log.disk,
            log.directory,
            group[0].base_offset,
            index_interval_bytes=log.config.index_interval_bytes,
        )
        self._out, self._changed = out, len(group) > 1
        meter = _StepMeter()
        dropped: BatchHeader | None = None
        for header, batch in self._batches(group):
            kept = yield from self._clean_batch(header, batch)
            dropped = header if kept is None else None
            if kept is not None:
                out.add(header if kept is batch else read_header(kept), kept)
            size = header.size_bytes + (len(kept) if kept is not None else 0)
            yield from meter.count(min(header.record_count, _STEP_RECORDS), size)
        if is_last and dropped is not None:
            empty = empty_batch(dropped)
            out.add(read_header(empty), empty)
        self.result.bytes_before += sum(segment.size_bytes for segment in group)
        self.result.bytes_after += out.size_bytes
        if self._changed:
            out.finish()
        yield meter.bytes

    def commit(self, group: SegmentGroup) -> tuple[bool, Segment | None]:
        """Swap the files. Returns whether anything changed, and the new segment (None if it has no batch)."""
        out = self._out
        assert out is not None
        log = self._task.log
        is_whole = all(one in log.segments or log.retirement.holds(one) for one in group.segments)
        if log.deleted or not is_whole or log.log_end_offset < group.end_offset:
            raise StorageError("the log was cut or deleted meanwhile")
        self._out = None
        if not self._changed:
            out.discard()
            return False, None
        for segment in group.segments:
            # Open the old files now: reads under way go on with them after they are unlinked.
            segment.keep_open()
            _ = segment.offset_index, segment.time_index
        return True, out.swap(group.end_offset)

    def abandon(self) -> None:
        if self._out is not None:
            self._out.discard()
            self._out = None

    def _batches(self, segments: Sequence[Segment]) -> Iterator[tuple[BatchHeader, Buffer]]:
        for segment in segments:
            next_offset = segment.base_offset
            for header, batch in _batches_of(self._task.log, segment):
                # The CRC does not cover offsets: damaged ones are noticed only because they are out of order.
                if not next_offset <= header.base_offset <= header.last_offset < self._task.end_offset:
                    raise StorageError(
                        f"{segment.path} is damaged: offset {header.base_offset} is out of order"
                    )
                next_offset = header.next_offset
                yield header, batch

    def _clean_batch(self, header: BatchHeader, batch: Buffer) -> Generator[int, None, Buffer | None]:
        """What stays of a batch; None if nothing does."""
        if header.is_control:
            kept = self._clean_marker(header, batch)
        elif self._transactions.is_aborted(header):
            self.result.records_removed += header.record_count
            kept = None
        else:
            kept = yield from self._clean_data(header, batch)
        if kept is None and self._is_last_of_producer(header):
            kept = empty_batch(header) if header.record_count else batch
        if kept is not batch:
            self._changed = True
        return kept

    def _clean_marker(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        if not self._transactions.is_alone(header):
            return batch
        self.result.settled_aborts.add(header.base_offset)
        if header.record_count == 0:
            return None
        horizon = delete_horizon_ms(header)
        if horizon is not None and horizon <= self._task.now_ms:
            self.result.records_removed += header.record_count
            return None
        if horizon is not None:
            self._wait_for(horizon)
            return batch
        body = body_of(header, batch)
        return self._with_horizon(header, body, list(raw_records(header, body)))

    def _clean_data(self, header: BatchHeader, batch: Buffer) -> Generator[int, None, Buffer | None]:
        if header.base_offset > self._keys.latest_offset:
            return batch  # behind the last batch that fit into the key map
        try:
            body = body_of(header, batch)
            records = raw_records(header, body)
            horizon = delete_horizon_ms(header)
            keeps_tombstones = horizon is None or self._task.now_ms < horizon
            keys, base = self._keys, header.base_offset
            kept: list[RawRecord] = []
            has_tombstone = False
            for place, record in enumerate(records, 1):
                if record.key is not None and base + record.offset_delta >= keys.last_offset(record.key):
                    if record.has_value:
                        kept.append(record)
                    elif keeps_tombstones:
                        kept.append(record)
                        has_tombstone = True
                if place % _STEP_RECORDS == 0:
                    yield 0
        except RequestError:
            return batch
        self.result.records_removed += header.record_count - len(kept)
        if not kept:
            return None
        if has_tombstone and horizon is None:
            return self._with_horizon(header, body, kept)
        if has_tombstone and horizon is not None:
            self._wait_for(horizon)
        if len(kept) == header.record_count:
            return batch
        return keep_records(header, body, kept, None)

    def _with_horizon(self, header: BatchHeader, body: bytes, kept: Sequence[RawRecord]) -> Buffer:
        horizon = self._task.now_ms + self._task.delete_retention_ms
        self._wait_for(horizon)
        return keep_records(header, body, kept, horizon)

    def _wait_for(self, horizon_ms: int) -> None:
        self.result.horizon_ms = max(self.result.horizon_ms, horizon_ms)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset is not None:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.producer_epoch


class _StepMeter:
    """Counts the work of a step, and ends it at `_STEP_RECORDS` or `_STEP_BYTES`."""

    __slots__ = ("_records", "bytes")

    def __init__(self) -> None:
        self._records = 0
        self.bytes = 0

    def count(self, records: int, size: int) -> Iterator[int]:
        self._records += records + (_BATCH_WEIGHT if size else 0)
        self.bytes += size
        if self._records >= _STEP_RECORDS or self.bytes >= _STEP_BYTES:
            done, self.bytes, self._records = self.bytes, 0, 0
            yield done


def _index_bytes(log: PartitionLog, segment: Segment) -> int:
    sizes = (
        log.disk.size(path) if log.disk.exists(path) else 0
        for path in (segment.path.with_suffix(".index"), segment.path.with_suffix(".timeindex"))
    )
    return max(sizes)


def _batches_of(log: PartitionLog, segment: Segment) -> Iterator[tuple[BatchHeader, Buffer]]:
    """Every batch of a closed segment, with its CRC checked. Opens its own file handle."""
    if log.deleted:
        raise StorageError("the log was deleted meanwhile")
    file = log.disk.open(segment.path)
    try:
        position, size = 0, segment.written_bytes
        want = _READ_BYTES
        while position < size:
            chunk = memoryview(file.read_at(position, want))
            used = 0
            while len(chunk) - used >= HEADER_BYTES:
                batch_bytes = read_header(chunk, used).batch_length + OVERHEAD_BYTES
                if used + batch_bytes > len(chunk):
                    break
                batch = chunk[used : used + max(batch_bytes, HEADER_BYTES)]
                try:
                    header = check_batch(batch)
                except RequestError as error:
                    at = position + used
                    raise StorageError(f"{segment.path} is damaged at byte {at}: {error}") from error
                yield header, batch
                used += batch_bytes
            if used == 0:
                if len(chunk) < want:
                    raise StorageError(f"{segment.path} ends inside a batch at byte {position}")
                want = max(want, read_header(chunk).batch_length + OVERHEAD_BYTES)
                continue
            position += used
            want = _READ_BYTES
    finally:
        file.close()
