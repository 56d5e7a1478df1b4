"""Whether a remote segment is what was stored: its footer, its batches, and that they agree. Blocking."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from chronik.model import TooNew
from chronik.records.batch import BatchHeader
from chronik.storage.index import OffsetIndex, TimeIndex
from chronik.storage.soundness import find_fault
from chronik.tiering.manifest import DamagedObject, RemoteSegment, decode_footer
from chronik.tiering.reader import BATCH_BYTES_MAX

__all__ = ["CheckedSegment", "ObjectBytes", "ObjectFault", "check_segment"]

_OFFSET_MAX: Final = 2**63 - 1


class ObjectBytes(Protocol):
    def read_at(self, position: int, size: int) -> bytes:
        """Fewer bytes only where the object ends."""
        ...


class ObjectFault(NamedTuple):
    position: int
    offset: int
    """The first one that is concerned."""
    kind: str
    why: str


@dataclasses.dataclass(slots=True)
class CheckedSegment:
    faults: list[ObjectFault] = dataclasses.field(default_factory=list)
    is_footer_sound: bool = False


class _Footer(NamedTuple):
    offsets: OffsetIndex
    times: TimeIndex


def check_segment(
    source: ObjectBytes, size: int, segment: RemoteSegment, epochs: Sequence[tuple[int, int]]
) -> CheckedSegment:
    """`epochs` are those of the manifest: (leader epoch, first offset), ascending."""
    checked = CheckedSegment()
    footer = _footer(source, size, segment, checked)
    log_bytes = min(segment.log_bytes, size)
    walk = _Walk(segment, epochs, footer)
    position, low = 0, 0
    while True:

        def read_at(at: int, count: int, start: int = position) -> bytes:
            # A length that is damaged must not make us read half of the object at once.
            return source.read_at(start + at, max(0, min(count, BATCH_BYTES_MAX, log_bytes - start - at)))

        sound = walk.batches
        walk.position = position
        fault = find_fault(read_at, log_bytes - position, low, segment.end_offset, walk.on_batch)
        if fault is None:
            break
        at, offset = position + fault.position, max(fault.offset, segment.base_offset)
        if walk.batches > sound or not checked.faults or checked.faults[-1].kind != "damaged batch":
            checked.faults.append(ObjectFault(at, offset, "damaged batch", fault.why))
        following = footer.offsets.position_after(at) if footer is not None else None
        if following is None or following >= log_bytes:
            break
        position, low = following, walk.next_offset
        walk.is_whole = False
    checked.faults += walk.faults
    if not checked.faults:
        checked.faults += walk.at_end()
    return checked


def _footer(
    source: ObjectBytes, size: int, segment: RemoteSegment, checked: CheckedSegment
) -> _Footer | None:
    wanted = max(min(segment.footer_bytes, size - segment.log_bytes), 0)
    data = source.read_at(segment.log_bytes, wanted) if wanted else b""
    try:
        offsets, times, _ = decode_footer(data, segment)
    except (DamagedObject, TooNew) as error:
        why = f"offset index, time index and aborted transactions: {error}"
        fault = ObjectFault(min(segment.log_bytes, size), segment.base_offset, "damaged index", why)
        checked.faults.append(fault)
        return None
    checked.is_footer_sound = True
    return _Footer(offsets, times)


class _Walk:
    """Holds each batch against what the manifest and the indexes say of it."""

    def __init__(
        self, segment: RemoteSegment, epochs: Sequence[tuple[int, int]], footer: _Footer | None
    ) -> None:
        self._segment = segment
        self._epochs = epochs
        self._first_offsets = [first for _, first in epochs]
        self._offsets = footer.offsets.entries() if footer is not None else iter(())
        self._times = footer.times.entries() if footer is not None else iter(())
        self._offset_entry = next(self._offsets, None)
        self._time_entry = next(self._times, None)
        self._max_timestamp_ms = -1
        self.faults: list[ObjectFault] = []
        self.position = 0
        """Where the walk that is under way began."""
        self.batches = 0
        self.next_offset = 0
        self.is_whole = True
        """No batch was left out so far."""

    def on_batch(self, position: int, header: BatchHeader) -> None:
        position += self.position
        if not self.batches and header.last_offset < self._segment.base_offset:
            why = f"its first batch ends at offset {header.last_offset}, before the segment begins"
            self._fault(position, header, "damaged batch", why)
        self.batches += 1
        self.next_offset = header.next_offset
        self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp)
        self._check_epoch(position, header)
        self._check_entries(position, header)

    def _fault(self, position: int, header: BatchHeader, kind: str, why: str) -> None:
        if not any(one.kind == kind for one in self.faults):  # the first one tells
            offset = max(header.base_offset, self._segment.base_offset)
            self.faults.append(ObjectFault(position, offset, kind, why))

    def _check_epoch(self, position: int, header: BatchHeader) -> None:
        """A batch's leader epoch stands outside its CRC."""
        offset = max(header.base_offset, self._segment.base_offset)
        place = bisect_right(self._first_offsets, offset) - 1
        if place >= 0 and (epoch := self._epochs[place][0]) != header.leader_epoch:
            why = f"offset {offset} has leader epoch {header.leader_epoch}, the manifest says {epoch}"
            self._fault(position, header, "wrong leader epoch", why)

    def _check_entries(self, position: int, header: BatchHeader) -> None:
        self._offset_entry = self._behind(self._offset_entry, position)
        if self._offset_entry is not None and self._offset_entry[1] == position:
            if self._offset_entry[0] != header.last_offset:
                why = f"the index says offset {self._offset_entry[0]}, the batch ends at {header.last_offset}"
                self._fault(position, header, "wrong index", why)
            self._offset_entry = next(self._offsets, None)
        while self._time_entry is not None and self._time_entry[1] <= header.last_offset:
            timestamp, offset = self._time_entry
            if self.is_whole and (offset != header.last_offset or timestamp != header.max_timestamp):
                why = f"the time index says {timestamp} at offset {offset}, which no batch has"
                self._fault(position, header, "wrong index", why)
            self._time_entry = next(self._times, None)

    def _behind(self, entry: tuple[int, int] | None, position: int) -> tuple[int, int] | None:
        """The next index entry at this batch or behind it; one before it points between batches."""
        while entry is not None and entry[1] < position:
            if self.is_whole:
                why = f"the index says that a batch begins at byte {entry[1]}"
                self.faults.append(ObjectFault(entry[1], self._segment.base_offset, "wrong index", why))
                self.is_whole = False  # told once
            entry = next(self._offsets, None)
        return entry

    def at_end(self) -> Iterator[ObjectFault]:
        """What shows once all batches are sound."""
        segment = self._segment
        if self._max_timestamp_ms != segment.max_timestamp_ms:
            why = f"its highest timestamp is {self._max_timestamp_ms}, not {segment.max_timestamp_ms}"
            yield ObjectFault(0, segment.base_offset, "wrong index", why)
        if self._offset_entry is not None or self._time_entry is not None:
            why = "its indexes have entries behind its last batch"
            yield ObjectFault(segment.log_bytes, segment.base_offset, "wrong index", why)
