"""Sparse indexes of a segment, in Kafka's file format.

Offset index: the last offset of a batch and the position where that batch starts, about one entry every
4 KiB. Time index: the highest timestamp so far and the last offset of the batch that has it.
Entries of both only grow.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")
RELATIVE_OFFSET_MAX: Final = 2**31 - 1


class OffsetIndex:
    __slots__ = ("_base", "_offsets", "_positions")

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def add(self, last_offset: int, position: int) -> None:
        self._offsets.append(last_offset - self._base)
        self._positions.append(position)

    def position_for(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`."""
        place = bisect_right(self._offsets, max(offset - self._base, 0)) - 1
        return self._positions[place] if place >= 0 else 0

    def before(self, offset: int) -> Iterator[tuple[int, int]]:
        """Last offset and position of those batches that end at or before `offset`, newest first."""
        for place in range(bisect_right(self._offsets, max(offset - self._base, 0)) - 1, -1, -1):
            yield self._base + self._offsets[place], self._positions[place]

    def entries(self) -> Iterator[tuple[int, int]]:
        """Last offset and position, oldest first."""
        for offset, position in zip(self._offsets, self._positions, strict=False):
            yield self._base + offset, position

    def position_after(self, position: int) -> int | None:
        """The next indexed batch start behind `position`: where to go on behind damage."""
        place = bisect_right(self._positions, position)
        return self._positions[place] if place < len(self._positions) else None

    def truncate(self, size: int) -> None:
        """Drop entries that point at or behind `size` bytes of log."""
        while self._positions and self._positions[-1] >= size:
            self._positions.pop()
            self._offsets.pop()

    def encode(self, first: int = 0) -> bytes:
        # Runs in an I/O thread while the loop may be halfway through `add`; zip drops the incomplete entry.
        positions = self._positions[first:]
        pairs = zip(self._offsets[first:], positions, strict=False)
        return b"".join(OFFSET_ENTRY.pack(offset, position) for offset, position in pairs)

    @classmethod
    def decode(cls, base_offset: int, data: bytes, log_bytes: int) -> OffsetIndex | None:
        """None if the bytes cannot be an index of a log of this size."""
        if len(data) % OFFSET_ENTRY.size:
            return None
        index = cls(base_offset)
        last_offset = last_position = -1
        for offset, position in OFFSET_ENTRY.iter_unpack(data):
            if offset <= last_offset or position <= last_position or position >= log_bytes:
                return None
            index._offsets.append(offset)
            index._positions.append(position)
            last_offset, last_position = offset, position
        return index


class TimeIndex:
    __slots__ = ("_base", "_offsets", "_timestamps")

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._offsets = array("I")
        self._timestamps = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last(self) -> tuple[int, int] | None:
        """Timestamp and offset of the last entry."""
        return (self._timestamps[-1], self._offsets[-1] + self._base) if self._offsets else None

    def add(self, timestamp: int, offset: int) -> None:
        """Added only if it moves forward, as readers of the file expect."""
        if not self._timestamps or (
            timestamp > self._timestamps[-1] and offset - self._base > self._offsets[-1]
        ):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self._base)

    def before(self, timestamp: int) -> Iterator[tuple[int, int]]:
        """Timestamp and offset of those entries that are older than `timestamp`, newest first."""
        for place in range(bisect_right(self._timestamps, timestamp - 1) - 1, -1, -1):
            yield self._timestamps[place], self._offsets[place] + self._base

    def entries(self) -> Iterator[tuple[int, int]]:
        """Timestamp and offset, oldest first."""
        for timestamp, offset in zip(self._timestamps, self._offsets, strict=False):
            yield timestamp, self._base + offset

    def truncate(self, offset: int) -> None:
        while self._offsets and self._offsets[-1] + self._base >= offset:
            self._offsets.pop()
            self._timestamps.pop()

    def encode(self, first: int = 0) -> bytes:
        offsets = self._offsets[first:]  # first what `add` appends last, see OffsetIndex
        pairs = zip(self._timestamps[first:], offsets, strict=False)
        return b"".join(TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in pairs)

    @classmethod
    def decode(cls, base_offset: int, data: bytes) -> TimeIndex | None:
        if len(data) % TIME_ENTRY.size:
            return None
        index = cls(base_offset)
        last_offset, last_timestamp = 0, -1
        for timestamp, offset in TIME_ENTRY.iter_unpack(data):
            if offset < last_offset or timestamp < last_timestamp:
                return None
            index._timestamps.append(timestamp)
            index._offsets.append(offset)
            last_timestamp, last_offset = timestamp, offset
        return index
