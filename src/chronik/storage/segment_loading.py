"""Opens the segment files of a log and makes them agree with the checkpoint.

Segments behind the active one of the checkpoint, and bytes of the active one behind the size noted there, are
dropped: recovery replays them from the WAL. What is missing instead is lost on this disk, and logged.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple

from chronik.model import StorageError, TopicPartition
from chronik.storage.disk import Disk
from chronik.storage.segment import Segment, segment_name
from chronik.storage.swap import settle

log = logging.getLogger(__name__)

INDEX_SUFFIXES: Final = ("index", "timeindex", "txnindex")


class CheckpointedLog(NamedTuple):
    """A log whose files are not open yet, as its checkpoint describes it."""

    tp: TopicPartition
    directory: Path
    extent: tuple[int, int]
    """Base offset and size of the active segment."""
    log_start_offset: int
    log_end_offset: int
    index_interval_bytes: int


def load_segments(disk: Disk, known: CheckpointedLog) -> list[Segment]:
    """Blocking. The segments, oldest first; the last one takes appends."""
    try:
        found = _open_segments(disk, known)
        _settle_active(disk, known, found)
    except OSError as error:
        raise StorageError(f"the files of {known.tp} cannot be opened: {error}") from error
    return found


def _open_segments(disk: Disk, known: CheckpointedLog) -> list[Segment]:
    """The segments that belong to the log. Files of other segments are deleted."""
    settle(disk, known.directory)
    active_base, _ = known.extent
    interval = known.index_interval_bytes
    found = []
    names = disk.list(known.directory)
    for name in names:
        if not name.endswith(".log") or not name[:-4].isdigit():
            continue
        segment = Segment.load(disk, known.directory, int(name[:-4]), index_interval_bytes=interval)
        if segment.base_offset > active_base:
            segment.delete()
        else:
            found.append(segment)
    while len(found) > 1 and found[1].base_offset <= known.log_start_offset:
        found.pop(0).delete()  # before the log start: it was due for deletion before the last stop
    if found:
        _end_deletions(disk, known.directory, names, found[0].base_offset)
    return found


def _end_deletions(disk: Disk, directory: Path, names: list[str], first_base: int) -> None:
    """Remove indexes of segments before the first one: a node that was killed had removed only the logs."""
    for name in names:
        stem, _, suffix = name.partition(".")
        if suffix in INDEX_SUFFIXES and stem.isdigit() and int(stem) < first_base:
            disk.remove(directory / name)


def _settle_active(disk: Disk, known: CheckpointedLog, found: list[Segment]) -> None:
    """Cut the active segment to the checkpoint's size; without one, begin one."""
    active_base, active_bytes = known.extent
    if found and found[-1].base_offset == active_base:
        _cut_to(found[-1], active_bytes, known)
        return
    if active_bytes > 0 and known.log_end_offset > known.log_start_offset:
        log.error(
            "%s: segment %s is missing; the records that only it held are lost on this disk",
            known.tp,
            known.directory / segment_name(active_base),
        )
    base_offset = max(known.log_end_offset, active_base)
    interval = known.index_interval_bytes
    found.append(Segment.create(disk, known.directory, base_offset, index_interval_bytes=interval))


def _cut_to(segment: Segment, active_bytes: int, known: CheckpointedLog) -> None:
    if segment.written_bytes > active_bytes:
        segment.truncate(active_bytes, known.log_end_offset)
    elif segment.written_bytes < active_bytes:
        end = segment.sound_end()
        line = "%s: %s has %d sound bytes, %d were synced; the records behind them are lost on this disk"
        log.error(line, known.tp, segment.path, end, active_bytes)
        segment.truncate(end, known.log_end_offset)
    else:
        _ = segment.offset_index  # appends continue in this segment: rebuild a damaged index now
