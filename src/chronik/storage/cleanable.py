"""When a compacted log is worth a compaction, and how far that may go. Also where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from chronik.storage.disk import Disk, read_whole, write_atomically
from chronik.storage.retention import SegmentFacts

FILE_NAME: Final = "cleaner-position"
_VERSION: Final = 1


class CleanedPosition(msgspec.Struct, array_like=True, frozen=True):
    """Where the last compaction ended; a file in the log's directory.

    If the file is lost the whole log counts as dirty: that costs work, not data.
    """

    version: int = _VERSION
    first_dirty_offset: int = 0
    """End offset of the last compaction: everything before it has been compacted."""
    horizon_ms: int = -1
    """Latest delete horizon of the tombstones and markers that are still kept; -1 if there are none."""


def load_position(disk: Disk, directory: Path) -> CleanedPosition:
    data = read_whole(disk, directory / FILE_NAME)
    if data is None or len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        return CleanedPosition()
    try:
        found = msgspec.msgpack.decode(data[4:], type=CleanedPosition)
    except ValueError:
        return CleanedPosition()
    return found if found.version == _VERSION else CleanedPosition()


def save_position(disk: Disk, directory: Path, position: CleanedPosition) -> None:
    body = msgspec.msgpack.encode(position)
    write_atomically(disk, directory / FILE_NAME, crc32c(body).to_bytes(4, "big") + body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The topic's settings."""

    min_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int


class Cleanable(NamedTuple):
    segments: int
    """Number of segments, counted from the oldest, that may be compacted."""
    is_due: bool
    """Whether to compact them now."""
    dirty_ratio: float
    """Share of those segments' bytes that was not compacted yet."""


def cleanable(
    segments: Sequence[SegmentFacts],
    position: CleanedPosition,
    policy: Policy,
    *,
    limit_offset: int,
    settled_below: int,
    now_ms: int,
    dirty_since_ms: int,
) -> Cleanable:
    """`segments` end with the active one, which is never touched.

    `limit_offset` is the last stable offset; `settled_below` as in `Retirement`; `dirty_since_ms` the
    timestamp of the first record that was not compacted yet.
    """
    count = dirty = total = 0
    for segment in segments[:-1]:
        is_dirty = segment.next_offset > position.first_dirty_offset
        too_young = is_dirty and now_ms - segment.youngest_ms < policy.min_lag_ms
        if segment.next_offset > limit_offset or segment.base_offset >= settled_below or too_young:
            break
        count += 1
        total += segment.size_bytes
        dirty += segment.size_bytes if is_dirty else 0
    overdue = dirty > 0 and now_ms - dirty_since_ms > policy.max_lag_ms
    tidies = 0 <= position.horizon_ms <= now_ms
    ratio = dirty / total if total else 0.0
    return Cleanable(count, count > 0 and (ratio > policy.min_dirty_ratio or overdue or tidies), ratio)
