"""Moves of the high watermark as events (S08)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chronik.metadata.bus import EventBus
from chronik.metadata.events import Event, HighWatermarkUpdated, LeaderChanged
from tests.unit.replication.support import Replicas, context, put
from tests.unit.storage.support import opened


async def test_whoever_subscribed_hears_of_moves_once_a_turn_and_nobody_else_makes_work(
    tmp_path: Path,
) -> None:
    bus = EventBus()
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store, context(bus=bus)).add("orders")
        published: list[Event] = []
        bus.listen(published.append)
        with bus.subscribe(LeaderChanged) as others:
            put(partition, (b"key", b"value"), now_ms=1)
            await store.wal.drained()
            assert partition.high_watermark == 1
            await asyncio.sleep(0)  # events leave at the end of the turn
            assert not published, "nobody has subscribed"
            with bus.subscribe(HighWatermarkUpdated) as watermarks:
                for end in (2, 3):
                    put(partition, (b"key", b"value"), now_ms=1)
                    partition.log.durable_end_offset = end
                    partition.on_durable(end)
                assert await watermarks.next_batch() == [
                    HighWatermarkUpdated(tp=partition.tp, high_watermark=3)
                ]
            assert not bus.wants_watermarks, "they are gone"
            assert others.drain() == []
        await store.wal.drained()
