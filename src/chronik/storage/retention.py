"""Which segments a log keeps: by age, by size, never above the high watermark.

The decision is a pure function of a few facts about the segments; `survey` finds those facts, reading files
only where memory does not have them, and without making an idle log hold more memory than before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from chronik.records.timestamps import is_believable
from chronik.storage.log import PartitionLog
from chronik.storage.segment import Segment
from chronik.storage.swap import settle

NO_LIMIT: Final = -1


class SegmentFacts(NamedTuple):
    base_offset: int
    next_offset: int
    """The base offset of the following segment, or the end of the log."""
    size_bytes: int
    youngest_ms: int
    """The highest timestamp, or when the file was last written to if no timestamp can be believed."""
    is_dated: bool = True
    """Whether `youngest_ms` is a timestamp of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The topic's settings; NO_LIMIT switches one off."""

    retention_ms: int = NO_LIMIT
    retention_bytes: int = NO_LIMIT


class Expired(NamedTuple):
    """What retention takes from the beginning of a log."""

    start_offset: int
    """Where the log starts from now on."""
    rules: tuple[str, ...]
    """The settings that decided it: retention.ms, retention.bytes or both."""
    youngest_ms: int
    """The youngest of what goes."""
    is_dated: bool
    """Whether `youngest_ms` is a timestamp of a record; else it is when the file was last written to."""


def expired(
    segments: Sequence[SegmentFacts], retention: Retention, *, high_watermark: int, now_ms: int
) -> Expired | None:
    """What is past its retention; None if everything stays.

    Oldest first, whole segments only: a young segment keeps what follows it. Size alone never makes a log
    smaller than `retention_bytes`.
    """
    found = None
    rules: dict[str, None] = {}
    left = sum(segment.size_bytes for segment in segments)
    for segment in segments:
        if segment.size_bytes == 0 or segment.next_offset > high_watermark:
            break
        left -= segment.size_bytes
        is_old = 0 <= retention.retention_ms < now_ms - segment.youngest_ms
        is_too_much = 0 <= retention.retention_bytes <= left
        if not is_old and not is_too_much:
            break
        rules |= dict.fromkeys(["retention.ms"] if is_old else ["retention.bytes"])
        youngest_ms, is_dated = segment.youngest_ms, segment.is_dated
        if found is not None and found.youngest_ms > youngest_ms:
            youngest_ms, is_dated = found.youngest_ms, found.is_dated
        found = Expired(segment.next_offset, tuple(rules), youngest_ms, is_dated)
    return found


def survey(log: PartitionLog, now_ms: int) -> list[SegmentFacts]:
    """Blocking: the facts about a log's segments, oldest first, the active one last."""
    segments = list(log.segments) if log.is_loaded else _on_disk(log)
    ends = [segment.base_offset for segment in segments[1:]] + [log.log_end_offset]
    return [
        SegmentFacts(segment.base_offset, end, segment.size_bytes, *_youngest_ms(log, segment, now_ms))
        for segment, end in zip(segments, ends, strict=True)
    ]


def first_timestamp(log: PartitionLog, segment: Segment) -> int:
    """Blocking: the highest timestamp of the first batch that a segment's file has; -1 if it has none."""
    probe = _probe(log, segment.base_offset)
    try:
        return next((header.max_timestamp for _, header in probe.scan(0)), -1)
    finally:
        probe.close()


def _on_disk(log: PartitionLog) -> list[Segment]:
    """Throw-away views of a log that nobody has used since the start: its own list stays unread."""
    active_base, active_bytes = log.active_extent()
    settle(log.disk, log.directory)
    found = []
    for name in log.disk.list(log.directory):
        if name.endswith(".log") and name[:-4].isdigit() and int(name[:-4]) <= active_base:
            found.append(_probe(log, int(name[:-4])))
    if found and found[-1].base_offset == active_base:
        found[-1].size_bytes = min(found[-1].size_bytes, active_bytes)
    return found


def _probe(log: PartitionLog, base_offset: int) -> Segment:
    return Segment.load(
        log.disk, log.directory, base_offset, index_interval_bytes=log.config.index_interval_bytes
    )


def _youngest_ms(log: PartitionLog, segment: Segment, now_ms: int) -> tuple[int, bool]:
    """When the youngest record of a segment is from, and whether a timestamp says so.

    A segment found on disk learns its highest timestamp from its index, through a view whose memory goes
    again. Batches that were stored with a wrong timestamp by an older version are judged here too.
    """
    if segment.max_timestamp < 0 and segment.written_bytes:
        probe = _probe(log, segment.base_offset)
        _ = probe.time_index
        segment.note_max_timestamp(probe.max_timestamp, probe.max_timestamp_offset)
        probe.close()
    if is_believable(segment.max_timestamp, now_ms):
        return segment.max_timestamp, True
    written_ms = log.disk.modified_ms(segment.path)
    if written_ms < 0:  # no file yet: it was appended a moment ago
        written_ms = segment.created_ms
    return (written_ms if 0 <= written_ms < now_ms else now_ms), False
