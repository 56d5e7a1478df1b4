"""Where one record lies: its batch, the segment and the WAL file with it, and whether a checkpoint has it.

For people who ask after a record. Nothing that serves clients goes this way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from chronik.records.batch import BatchHeader, headers
from chronik.records.reader import read_marker
from chronik.storage import checkpoint
from chronik.storage.disk import Disk, File, IoThread
from chronik.storage.epochs import EpochHistory
from chronik.storage.log import PartitionLog
from chronik.storage.segment import Segment
from chronik.storage.wal_format import (
    ENTRY_HEADER_BYTES,
    EntryHeader,
    WalEntryKind,
    decode_header,
)
from chronik.storage.wal_writer import WalFile

__all__ = [
    "BatchPlace",
    "TooManyEntries",
    "WalPlace",
    "is_checkpointed",
    "locate_batch",
    "locate_in_wal",
    "transaction_end",
]

WAL_ENTRIES_READ_MAX: Final = 20_000
"""Headers that are looked through for one batch, from the newest file on."""


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


class WalPlace(NamedTuple):
    file_name: str
    position: int
    """Where the entry begins."""
    round: int
    """Number of the commit round that made it durable, unique on this node."""


class TooManyEntries(Exception):
    """The batch was not among the newest `WAL_ENTRIES_READ_MAX` entries; it may be in an older one."""


def locate_in_wal(
    disk: Disk, files: Sequence[WalFile], log_: PartitionLog, base_offset: int
) -> WalPlace | None:
    """Blocking. The newest entry with the batch; None if the WAL does not hold it any more."""
    key, room = (log_.topic_id_bytes, log_.tp.partition), WAL_ENTRIES_READ_MAX
    for file in reversed(files):
        if not disk.exists(file.path):
            continue  # given up meanwhile
        opened = disk.open(file.path)
        try:
            walked, found = _append_at_or_before(opened, file.first_sequence, key, base_offset, room)
            if found is not None:
                position, header = found
                payload = opened.read_at(position + ENTRY_HEADER_BYTES, header.payload_bytes)
                if any(batch.base_offset == base_offset for _, batch in headers(payload)):
                    return WalPlace(file.path.name, position, header.round)
        finally:
            opened.close()
        room -= walked
        if room <= 0:
            raise TooManyEntries
    return None


def _append_at_or_before(
    file: File, first_sequence: int, key: tuple[bytes, int], base_offset: int, room: int
) -> tuple[int, tuple[int, EntryHeader] | None]:
    """How many entries were looked at, and the last append at or before the offset that was not taken back.

    Behind the file's own entries may be those of an earlier use, with lower sequence numbers.
    """
    position = walked = 0
    sequence = first_sequence - 1
    found: tuple[int, EntryHeader] | None = None
    while walked < room:
        header = decode_header(file.read_at(position, ENTRY_HEADER_BYTES).ljust(ENTRY_HEADER_BYTES, b"\0"))
        if header is None or header.sequence <= sequence:
            break
        sequence = header.sequence
        if (header.topic_id, header.partition) == key and header.offset <= base_offset:
            if header.kind == WalEntryKind.APPEND:
                found = position, header
            elif header.kind in (WalEntryKind.TRUNCATE, WalEntryKind.RESET):
                found = None
        position += ENTRY_HEADER_BYTES + header.payload_bytes
        walked += 1
    return walked, found


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
