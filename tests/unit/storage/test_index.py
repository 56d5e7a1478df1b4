"""Index entries that are written while another one is being added."""

from __future__ import annotations

from chronik.storage.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex


def test_half_an_entry_is_not_written() -> None:
    """The flusher encodes in an I/O thread; the loop may have added one of an entry's two halves."""
    offsets, times = OffsetIndex(0), TimeIndex(0)
    offsets.add(9, 100)
    times.add(1000, 9)
    offsets._offsets.append(19)
    times._timestamps.append(2000)
    assert offsets.encode() == OFFSET_ENTRY.pack(9, 100)
    assert times.encode() == TIME_ENTRY.pack(1000, 9)
