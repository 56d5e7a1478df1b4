"""Puts sealed segments of a partition that this node leads into the object store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Final, NamedTuple

from chronik.metrics import TieringStats
from chronik.model import RequestError, StorageError
from chronik.replication.partition import Partition
from chronik.storage.disk import IoThread
from chronik.storage.log_parts import SegmentDamage
from chronik.storage.segment import Segment
from chronik.tiering.catalog import Catalog
from chronik.tiering.manifest import SEGMENTS_MAX, RemoteManifest, RemoteSegment, joined_epochs, segment_name
from chronik.tiering.segment_copy import BatchTooLarge, SegmentCopy

__all__ = ["Uploader", "WantedSegment", "wanted_segments"]

log = logging.getLogger(__name__)

READ_BYTES: Final = 512 * 1024
"""Read, checked and sent at a time: a few milliseconds of work."""
SEGMENTS_A_COMMIT: Final = 8
INDEX_INTERVAL_MIN: Final = 4 * 1024
INDEX_INTERVAL_MAX: Final = 64 * 1024
"""Bytes between the index entries of an uploaded copy, whatever index.interval.bytes says. A reader keeps the
index in memory, and fetches and checks everything between an entry and the record it looks for."""


class WantedSegment(NamedTuple):
    """A local segment, or the rest of one, that the store does not have."""

    segment: Segment
    base_offset: int
    """The end of what is before it in the store: segments without records are left out."""
    end_offset: int
    size_bytes: int


def wanted_segments(partition: Partition) -> list[WantedSegment]:
    """Sealed segments wholly below what can never change: the high watermark, and the last stable offset, so
    that it is known which of their transactions were aborted. Loaded logs only."""
    log_, remote = partition.log, partition.remote
    begin = log_.log_start_offset if remote is None else max(remote.end_offset, log_.log_start_offset)
    on_disk = min(log_.flushed_offset, log_.synced_end_offset)
    limit = min(partition.high_watermark, partition.last_stable_offset, on_disk)
    found = []
    for segment, following in zip(log_.segments, log_.segments[1:], strict=False):
        end = following.base_offset
        if end <= begin or not segment.size_bytes:
            continue
        if end > limit or segment.written_bytes < segment.size_bytes:
            break
        found.append(WantedSegment(segment, begin, end, segment.size_bytes))
        begin = end
    return found


class _Interrupted(Exception):
    """The partition is not what it was when the upload began; what was uploaded counts for nothing."""


class Uploader:
    def __init__(self, catalog: Catalog, stats: TieringStats) -> None:
        self._catalog = catalog
        self._stats = stats

    async def upload(self, partition: Partition) -> None:
        """Put everything that is wanted into the store."""
        while await self.upload_some(partition):
            pass

    async def upload_some(self, partition: Partition) -> bool:
        """Put the next few segments into the store and make them count. Whether there are more to upload."""
        await partition.log.load()
        wanted = wanted_segments(partition)
        if not wanted:
            return False
        try:
            await self._upload(partition, wanted[:SEGMENTS_A_COMMIT])
        except _Interrupted as reason:
            log.info("%s: an upload is given up: %s", partition.tp, reason)
            return False
        except SegmentDamage as damage:
            partition.log.will_be_repaired(damage)
            raise StorageError(f"{damage}; it is not put into the object store") from None
        return bool(wanted_segments(partition))

    async def _upload(self, partition: Partition, wanted: list[WantedSegment]) -> None:
        epoch, before = partition.leader_epoch, partition.remote
        manifest = await self._catalog.manifest(partition)
        if len(manifest.segments) + len(wanted) > SEGMENTS_MAX:
            raise StorageError(
                f"{partition.tp} has {len(manifest.segments)} remote segments, at most {SEGMENTS_MAX} are "
                "listed: raise segment.bytes, or lower retention.ms or retention.bytes"
            )
        added: list[RemoteSegment] = []
        epochs = manifest.epochs
        for one in wanted:
            try:
                copy = await self._copy(partition, epoch, one)
            except (BatchTooLarge, SegmentDamage):
                if not added:
                    raise
                break  # what is before it counts: it would go up again at each look. The next look tells
            disk, path = partition.log.disk, one.segment.path
            written_ms = await disk.run(IoThread.BACKGROUND, partial(disk.modified_ms, path))
            added.append(copy.described(written_ms))
            epochs = joined_epochs(epochs, copy.epochs)
            if partition.leader_epoch != epoch or not partition.is_leader:
                raise _Interrupted("another epoch began")
        wanted = wanted[: len(added)]
        async with self._catalog.changing(partition):
            if partition.remote != before or partition.leader_epoch != epoch or not partition.is_leader:
                raise _Interrupted("its remote log or its leader changed meanwhile")
            if partition.log.log_start_offset > wanted[0].base_offset:
                raise _Interrupted("some of its records were deleted meanwhile")
            has_old = before is not None and before.start_offset < before.end_offset
            start = before.start_offset if before is not None and has_old else wanted[0].base_offset
            segments = (*manifest.segments, *added)
            await self._catalog.commit(
                partition, epoch, RemoteManifest(segments, epochs), start, wanted[-1].end_offset
            )
        self._stats.uploaded_segments += len(added)
        self._stats.uploaded_bytes += sum(one.size_bytes for one in added)
        log.info(
            "%s: offsets %d to %d are in the object store (%d segments)",
            partition.tp,
            wanted[0].base_offset,
            wanted[-1].end_offset - 1,
            len(segments),
        )

    async def _copy(self, partition: Partition, leader_epoch: int, wanted: WantedSegment) -> SegmentCopy:
        name = segment_name(leader_epoch, wanted.base_offset, self._catalog.unique())
        asked = partition.log.config.index_interval_bytes
        interval = min(max(asked, INDEX_INTERVAL_MIN), INDEX_INTERVAL_MAX)
        attempts: list[SegmentCopy] = []

        async def chunks() -> AsyncIterator[bytes]:
            copy = SegmentCopy(name, wanted.base_offset, wanted.end_offset, interval)
            attempts.append(copy)
            position = 0
            while position < wanted.size_bytes:
                if partition.leader_epoch != leader_epoch or not partition.is_leader:
                    raise StorageError("another leader epoch began")
                size = min(READ_BYTES, wanted.size_bytes - position)
                read = partial(_read_and_check, wanted.segment, position, size, copy)
                data = await partition.log.disk.run(IoThread.BACKGROUND, read)
                position += size
                if data:
                    yield data
                await asyncio.sleep(0)
            producers = partition.log.producers
            touching = (
                () if producers is None else producers.aborted_between(wanted.base_offset, wanted.end_offset)
            )
            yield await partition.log.disk.run(IoThread.BACKGROUND, partial(copy.finish, touching))

        await self._catalog.door.put(self._catalog.path(partition, name), chunks)
        return attempts[-1]


def _read_and_check(segment: Segment, position: int, size: int, copy: SegmentCopy) -> bytes:
    """Blocking."""
    data = segment.file.read_at(position, size)
    if len(data) < size:
        raise StorageError(f"{segment.path} has no {size} bytes at {position}")
    try:
        return copy.feed(data)
    except BatchTooLarge:
        raise  # no damage: another replica has the same
    except (RequestError, StorageError):
        raise SegmentDamage(segment, position, max(copy.next_offset, segment.base_offset)) from None
