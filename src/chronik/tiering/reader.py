"""Reads a partition's remote log: batches by offset, offsets by timestamp, epochs by offset.

Whatever takes long happens in tasks of the cache or in the disk's read thread. A reader that gives up leaves
its fetch to go on, so that it finds the bytes when it asks again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from chronik.metrics import TieringStats
from chronik.model import ChronikError, ErrorCode, RequestError
from chronik.objects.store import ObjectMissing, ObjectStoreBusy
from chronik.records.batch import HEADER_BYTES, OVERHEAD_BYTES, BatchHeader, check_batch, read_header
from chronik.replication.partition import Partition
from chronik.storage.disk import IoThread
from chronik.storage.epochs import EpochHistory
from chronik.storage.index import OffsetIndex, TimeIndex
from chronik.storage.producer_state import AbortedTxn
from chronik.storage.reading import EMPTY, LogSlice, TimestampedOffset, first_at_or_after
from chronik.tiering.cache import CHUNK_BYTES, ObjectCache
from chronik.tiering.catalog import Catalog
from chronik.tiering.failures import store_failed
from chronik.tiering.fetches import Fetches, ObjectPart
from chronik.tiering.manifest import (
    BATCH_BYTES_MAX,
    DamagedObject,
    RemoteSegment,
    decode_footer,
    joined_epochs,
)
from chronik.tiering.memory import ByteBudget, Holding

__all__ = ["RemoteReader"]

READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""What one read returns at most, unless its first batch is larger, whatever the client asks for."""
_SCAN_BYTES: Final = 64 * 1024
_INDEX_MEMORY_PER_BYTE: Final = 2
"""Memory that an index takes while it is decoded, for each of its bytes."""
_MISSED_MAX: Final = 32
"""Batches that a look-up by time decodes in vain before it answers with the last of them."""


class _Footer(NamedTuple):
    offsets: OffsetIndex
    times: TimeIndex
    aborted: tuple[AbortedTxn, ...]


class _Found(NamedTuple):
    """Whole batches of a segment; none where a batch is that is too large."""

    data: bytearray
    headers: list[tuple[int, BatchHeader]]


class RemoteReader:
    def __init__(
        self,
        catalog: Catalog,
        cache: ObjectCache,
        fetches: Fetches,
        memory: ByteBudget,
        *,
        index_bytes_max: int,
        stats: TieringStats,
    ) -> None:
        """`memory` is for what readers join out of pieces, `index_bytes_max` for the indexes of segments."""
        self._catalog = catalog
        self._cache = cache
        self._fetches = fetches
        self._memory = memory
        self._index_bytes_max = index_bytes_max
        self._stats = stats
        self._footers: OrderedDict[str, tuple[int, _Footer]] = OrderedDict()
        """Footers with their sizes; least recently used first."""
        self._footers_bytes = 0

    # --- by offset ---------------------------------------------------------------------------------

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, min_one_batch: bool = True
    ) -> LogSlice:
        """Batches from the one that holds `offset` on, at most to the end of its segment; none if others are
        reading so much that there is no room for it."""
        self._stats.reads += 1
        try:
            found = await self._read(partition, offset, bytes_max, min_one_batch)
        except RequestError:
            raise
        except ObjectStoreBusy:
            self._stats.deferred_reads += 1
            return EMPTY
        except (ChronikError, OSError) as error:
            self._stats.failed_reads += 1
            if isinstance(error, ObjectMissing) and not _is_remote(partition, offset):
                raise _out_of_range(partition, offset) from None
            raise store_failed(partition.tp, error) from None
        self._stats.read_bytes += found.size_bytes
        return found

    async def _read(self, partition: Partition, offset: int, bytes_max: int, min_one_batch: bool) -> LogSlice:
        if not _is_remote(partition, offset):
            raise _out_of_range(partition, offset)
        segment = (await self._catalog.manifest(partition)).find(offset)
        if segment is None:
            raise _out_of_range(partition, offset)
        footer = await self._footer(partition, segment)
        start = footer.offsets.position_for(offset)
        if not min_one_batch and bytes_max < HEADER_BYTES:
            return EMPTY
        with self._memory.holding() as holding:
            batches = self._batches(
                partition, segment, start, bytes_max, holding, min_one_batch=min_one_batch
            )
            async for found in batches:
                taken = _taken(found, footer, offset, bytes_max, min_one_batch)
                if taken is not None:
                    return taken
                del found  # the next ones take its place
        return await self._behind(partition, segment, bytes_max, min_one_batch)

    async def _behind(
        self, partition: Partition, segment: RemoteSegment, bytes_max: int, min_one_batch: bool
    ) -> LogSlice:
        """The segment ends in a gap: the next one, or the local log, has what comes next."""
        limit = partition.high_watermark
        return await partition.read(segment.end_offset, bytes_max, limit, min_one_batch=min_one_batch)

    async def _batches(
        self,
        partition: Partition,
        segment: RemoteSegment,
        start: int,
        bytes_max: int,
        holding: Holding,
        *,
        min_one_batch: bool = True,
    ) -> AsyncIterator[_Found]:
        """The segment's batches from position `start` on, in pieces; each is checked, and is what the reader
        holds until it asks for the next one.

        Without `min_one_batch` it ends at a batch that is larger than a piece, with nothing in its place.
        """
        position, wanted = start, min(max(bytes_max, _SCAN_BYTES), READ_BYTES_MAX)
        low = segment.base_offset if start else -1
        disk = partition.log.disk
        while position < segment.log_bytes:
            size = min(wanted, segment.log_bytes - position)
            holding.resize(size)
            data = await self._range(partition, segment, position, size)
            if len(data) >= HEADER_BYTES:
                first = read_header(data).batch_length + OVERHEAD_BYTES
                if size < first <= min(BATCH_BYTES_MAX, segment.log_bytes - position):
                    if not min_one_batch:
                        yield _Found(bytearray(), [])
                        return
                    data = bytearray()
                    holding.resize(first)
                    data = await self._range(partition, segment, position, first)
            check = partial(_sound, data, low, segment.end_offset)
            headers = await disk.run(IoThread.READ, check)
            if not headers:
                self._stats.damaged += 1
                self._forget(partition, segment, position, len(data))
                raise DamagedObject(
                    f"{segment.name} is damaged in the object store near byte {position} of its batches"
                )
            last_place, last = headers[-1]
            end = last_place + last.size_bytes
            low = last.next_offset
            position += end
            if position < segment.log_bytes:
                self._cache.prefetch(self._chunk(partition, segment, position + CHUNK_BYTES // 2))
            yield _Found(data, headers)
            del data

    async def _range(self, partition: Partition, segment: RemoteSegment, start: int, size: int) -> bytearray:
        """Bytes of a segment's batches, out of pieces of the cache. Each is copied as it comes: those that
        the cache has let go of meanwhile would be memory that nobody counts."""
        joined = bytearray(size)
        position = start
        while position < start + size:
            part = self._chunk(partition, segment, position)
            end = min(part.start + part.size, start + size)
            piece = memoryview(await self._cache.get(part))
            joined[position - start : end - start] = piece[position - part.start : end - part.start]
            position = end
        return joined

    def _chunk(self, partition: Partition, segment: RemoteSegment, position: int) -> ObjectPart:
        start = min(position, segment.log_bytes - 1) // CHUNK_BYTES * CHUNK_BYTES
        path = self._catalog.path(partition, segment.name)
        return ObjectPart(path, start, min(CHUNK_BYTES, segment.log_bytes - start))

    def _forget(self, partition: Partition, segment: RemoteSegment, start: int, size: int) -> None:
        """Forget what was cached of a segment, so that the next reader asks the store again: the damage may
        be on the way."""
        for position in range(start, start + max(size, 1), CHUNK_BYTES):
            self._cache.drop(self._chunk(partition, segment, position))
        self._cache.drop(self._chunk(partition, segment, start + size))

    async def _footer(self, partition: Partition, segment: RemoteSegment) -> _Footer:
        known = self._footers.get(segment.name)
        if known is not None:
            self._footers.move_to_end(segment.name)
            return known[1]
        path = self._catalog.path(partition, segment.name)
        part = ObjectPart(path, segment.log_bytes, segment.footer_bytes)
        fetch = partial(self._fetch_footer, partition, segment, part)
        return await self._fetches.get(part, fetch, _INDEX_MEMORY_PER_BYTE * part.size)

    async def _fetch_footer(self, partition: Partition, segment: RemoteSegment, part: ObjectPart) -> _Footer:
        data = await self._catalog.door.get(*part)
        decode = partial(decode_footer, data, segment)
        try:
            found = _Footer(*await partition.log.disk.run(IoThread.READ, decode))
        except DamagedObject as error:
            self._stats.damaged += 1
            raise DamagedObject(f"the index of {segment.name} is damaged: {error}") from None
        self._footers[segment.name] = (segment.footer_bytes, found)
        self._footers_bytes += segment.footer_bytes
        while self._footers_bytes > self._index_bytes_max and len(self._footers) > 1:
            _, (size, _) = self._footers.popitem(last=False)
            self._footers_bytes -= size
        return found

    # --- epochs and timestamps ---------------------------------------------------------------------

    async def epochs(self, partition: Partition) -> EpochHistory:
        """The leader epochs of the whole log: those that the store has, then those of the local disk."""
        with _as_request_errors(partition):
            manifest = await self._catalog.manifest(partition)
        return EpochHistory(joined_epochs(manifest.epochs, partition.log.epochs.entries))

    async def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> TimestampedOffset | None:
        """The first remote record that is at least so young, of those that are not on the local disk."""
        with _as_request_errors(partition):
            for segment in await self._only_remote(partition):
                if segment.max_timestamp_ms >= timestamp_ms:
                    found = await self._find_time(partition, segment, timestamp_ms)
                    if found is not None:
                        return found
        return None

    async def max_timestamp(self, partition: Partition) -> int:
        """The highest timestamp of the remote segments that are not on the local disk; -1 without any."""
        with _as_request_errors(partition):
            segments = await self._only_remote(partition)
        return max((one.max_timestamp_ms for one in segments), default=-1)

    async def _only_remote(self, partition: Partition) -> list[RemoteSegment]:
        """Segments with records that the log has and the local disk has not."""
        manifest = await self._catalog.manifest(partition)
        start, local = partition.log_start_offset, partition.log.log_start_offset
        return [one for one in manifest.segments if one.end_offset > start and one.base_offset < local]

    async def _find_time(
        self, partition: Partition, segment: RemoteSegment, timestamp_ms: int
    ) -> TimestampedOffset | None:
        footer = await self._footer(partition, segment)
        older = next(iter(footer.times.before(timestamp_ms)), None)
        start = footer.offsets.position_for(older[1]) if older is not None else 0
        with self._memory.holding() as holding:
            batches = self._batches(partition, segment, start, _SCAN_BYTES, holding)
            return await _first_at_or_after(partition, batches, timestamp_ms)


@contextmanager
def _as_request_errors(partition: Partition) -> Iterator[None]:
    try:
        yield
    except RequestError:
        raise
    except (ChronikError, OSError) as error:
        raise store_failed(partition.tp, error) from None


def _taken(
    found: _Found, footer: _Footer, offset: int, bytes_max: int, min_one_batch: bool
) -> LogSlice | None:
    """What a read of `offset` returns of these batches; None if it has to look behind them."""
    if not found.headers:
        return EMPTY
    wanted = [(place, header) for place, header in found.headers if header.last_offset >= offset]
    if not wanted:
        return None
    first = wanted[0][0]
    end = first
    for place, header in wanted:
        if place + header.size_bytes - first > bytes_max and (end > first or not min_one_batch):
            break
        end, next_offset = place + header.size_bytes, header.next_offset
    if end == first:
        return EMPTY
    aborted = [
        (one.producer_id, one.first_offset)
        for one in footer.aborted
        if one.last_offset >= offset and one.first_offset < next_offset
    ]
    return LogSlice([memoryview(found.data)[first:end]], end - first, aborted)


async def _first_at_or_after(
    partition: Partition, batches: AsyncIterator[_Found], timestamp_ms: int
) -> TimestampedOffset | None:
    missed, log_start, disk = 0, partition.log_start_offset, partition.log.disk
    async for found in batches:
        for place, header in found.headers:
            if header.max_timestamp < timestamp_ms or header.next_offset <= log_start or header.is_control:
                continue
            batch = memoryview(found.data)[place : place + header.size_bytes]
            look = partial(first_at_or_after, batch, header, timestamp_ms, log_start)
            record = await disk.run(IoThread.RECORDS, look)
            missed += 1
            if record is None and missed >= _MISSED_MAX:
                first = max(header.base_offset, log_start)
                return TimestampedOffset(first, header.max_timestamp, header.leader_epoch)
            if record is not None:
                return record
        await asyncio.sleep(0)
    return None


def _sound(data: bytearray, low: int, end_offset: int) -> list[tuple[int, BatchHeader]]:
    """Blocking: position and header of each whole batch, up to one that is not what was stored."""
    found = []
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = read_header(data, position)
        if position + header.batch_length + OVERHEAD_BYTES > len(data):
            break
        try:
            check_batch(data, position)
        except RequestError:
            break
        if header.base_offset < low or header.last_offset >= end_offset:
            break
        found.append((position, header))
        low = header.next_offset
        position += header.size_bytes
    return found


def _is_remote(partition: Partition, offset: int) -> bool:
    remote = partition.remote
    return remote is not None and remote.start_offset <= offset < remote.end_offset


def _out_of_range(partition: Partition, offset: int) -> RequestError:
    return RequestError(
        ErrorCode.offset_out_of_range,
        f"{partition.tp} holds offsets {partition.log_start_offset} to {partition.log.log_end_offset}, "
        f"not {offset}",
    )
