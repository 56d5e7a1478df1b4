"""Where one record lies: its batch, the segment file and the position in it, and whether a checkpoint has it.

For people who ask after a record. Nothing that serves clients goes this way.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from pathlib import Path
from typing import NamedTuple

from chronik.records.batch import BatchHeader
from chronik.records.reader import read_marker
from chronik.storage import checkpoint
from chronik.storage.disk import Disk, IoThread
from chronik.storage.epochs import EpochHistory
from chronik.storage.log import PartitionLog
from chronik.storage.segment import Segment

__all__ = ["BatchPlace", "is_checkpointed", "locate_batch", "transaction_end"]


class BatchPlace(NamedTuple):
    header: BatchHeader
    path: Path
    position: int
    is_commit: bool | None
    """What a transaction marker says; None for every other batch."""


async def locate_batch(log_: PartitionLog, offset: int) -> BatchPlace | None:
    """The batch that spans `offset`; None for a gap, which compaction leaves and damage too."""
    tail = log_.tail
    if tail and offset >= tail[0].base_offset:
        index = bisect_right(tail, offset, key=lambda batch: batch.next_offset)
        if index == len(tail) or tail[index].base_offset > offset:
            return None
        batch = tail[index]
        return _place(batch.header, batch.segment, batch.position, bytes(batch.view))
    await log_.load()
    return await log_.disk.run(IoThread.READ, partial(_in_files, list(log_.segments), offset))


def _in_files(segments: list[Segment], offset: int) -> BatchPlace | None:
    """Blocking. A compacted segment may end before `offset` and the next one start behind it."""
    first = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    found = segments[first].locate(offset)
    if found is None or found[1].base_offset > offset:
        return None
    position, header = found
    batch = segments[first].file.read_at(position, header.size_bytes) if header.is_control else b""
    return _place(header, segments[first], position, batch)


def _place(header: BatchHeader, segment: Segment, position: int, batch: bytes) -> BatchPlace:
    marker = read_marker(batch) if header.is_control else None
    return BatchPlace(header, segment.path, position, None if marker is None else marker.is_commit)


def transaction_end(log_: PartitionLog, header: BatchHeader) -> str | None:
    """Whether a batch's transaction is open, committed or aborted; None for a batch of no transaction."""
    if not header.is_transactional or header.is_control:
        return None
    producers = log_.producers
    if producers is None:
        return "committed"
    entry = producers.get(header.producer_id)
    if entry is not None and 0 <= entry.txn_first_offset <= header.base_offset:
        return "open"
    aborted = producers.aborted_between(header.base_offset, header.next_offset)
    return "aborted" if any(one.producer_id == header.producer_id for one in aborted) else "committed"


async def is_checkpointed(
    disk: Disk, root: Path, log_: PartitionLog, offset: int, header: BatchHeader | None
) -> bool:
    """Whether the record is in a synced segment, so that a restart does not need the WAL for it.

    A log that was truncated and appended to again since has other batches at the same offsets: those of
    another leader epoch. `header` is None for a gap.
    """
    saved = await disk.run(IoThread.BACKGROUND, partial(checkpoint.load, disk, root))
    for one in saved.logs:
        if (one.topic_id, one.partition) == (log_.topic_id_bytes, log_.tp.partition):
            same = header is None or EpochHistory(one.epochs).epoch_of(offset) == header.leader_epoch
            return offset < one.log_end_offset and same
    return False
