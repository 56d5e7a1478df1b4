"""Index entries that are written while another one is being added."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.storage.disk import RealDisk
from chronik.storage.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from chronik.storage.segment import Segment, segment_name


def test_half_an_entry_is_not_written() -> None:
    """The flusher encodes in an I/O thread; the loop may have added one of an entry's two halves."""
    offsets, times = OffsetIndex(0), TimeIndex(0)
    offsets.add(9, 100)
    times.add(1000, 9)
    offsets._offsets.append(19)
    times._timestamps.append(2000)
    assert offsets.encode() == OFFSET_ENTRY.pack(9, 100)
    assert times.encode() == TIME_ENTRY.pack(1000, 9)


def test_an_entry_before_the_segment_makes_no_index() -> None:
    assert TimeIndex.decode(0, TIME_ENTRY.pack(1000, -1)) is None
    assert OffsetIndex.decode(0, OFFSET_ENTRY.pack(-1, 0), 100) is None


@pytest.mark.parametrize("damaged", [-5, 2**40])
async def test_an_offset_that_the_disk_changed_keeps_no_index_from_being_rebuilt(
    tmp_path: Path, damaged: int
) -> None:
    """A batch's offset stands outside its checksum, and relative ones are 32 bits wide."""
    data = bytearray()
    for offset in (0, 1, 2):
        batch = build_batch([Record(key=None, value=b"x" * 100)])
        batch[:8] = (damaged if offset == 1 else offset).to_bytes(8, "big", signed=True)
        data += batch
    disk = RealDisk(asyncio.get_running_loop())
    (tmp_path / segment_name(0)).write_bytes(data)
    segment = Segment.load(disk, tmp_path, 0, index_interval_bytes=1)
    segment.rebuild_indexes()
    assert [last for last, _ in segment.offset_index.before(10)] == [2]
    assert segment.readable_bytes == len(data)
    segment.close()
    disk.close()
