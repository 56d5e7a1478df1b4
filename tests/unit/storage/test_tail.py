"""What memory keeps of a log's recent batches."""

from __future__ import annotations

import gc
from pathlib import Path

from chronik.records.batch import headers
from chronik.storage import reading
from chronik.storage.disk import IoThread
from tests.unit.storage.support import append, append_durably, open_orders, opened


async def test_small_batches_in_memory_are_no_work_for_the_garbage_collector(tmp_path: Path) -> None:
    """Tens of thousands of them, looked at every time, held up the whole node for as many microseconds."""
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        await append_durably(store, log, b"first")
        for number in range(500):
            append(log, b"value-%d" % number)
        await store.wal.drained()
        await store.flusher.flushed()
        await store.disk.run(IoThread.WAL, lambda: None)  # the thread has let go of the last round
        assert len(log.tail) == 501
        gc.collect()
        held = [item for batch in log.tail for item in (batch, *gc.get_referents(batch))]
        tracked = {id(item): item for item in held if gc.is_tracked(item) and not isinstance(item, type)}
        assert len(tracked) < 100
        assert log.tail[-1].header.base_offset == 500


async def test_what_memory_has_is_found_near_its_end_and_far_from_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        log = open_orders(store)
        for number in range(40):
            append(log, b"%d-a" % number, b"%d-b" % number)
        await store.wal.drained()
        for offset in range(80):
            found = reading.read_now(log, offset, 1, 80)
            assert found is not None
            (header,) = (header for buffer in found.buffers for _, header in headers(buffer))
            assert header.base_offset == offset - offset % 2
            run_ = reading.read_run_now(log, header.base_offset, 1)
            assert run_ is not None
            assert run_.next_offset == header.next_offset
        assert reading.read_now(log, 80, 1, 80) == reading.EMPTY
