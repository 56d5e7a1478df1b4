"""Publishes moves of high watermarks on this node: one event per partition and turn of the loop (S08)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chronik.metadata.bus import EventBus
from chronik.metadata.events import HighWatermarkUpdated

if TYPE_CHECKING:
    from chronik.replication.replica import Replica


class WatermarkEvents:
    """Asked only while `bus.wants_watermarks`: a move costs one look at a flag when nobody listens."""

    __slots__ = ("_is_scheduled", "_loop", "_moved", "bus")

    def __init__(self, bus: EventBus) -> None:
        self.bus = bus
        self._loop = asyncio.get_running_loop()
        self._moved: dict[Replica, None] = {}
        self._is_scheduled = False

    def moved(self, partition: Replica) -> None:
        self._moved[partition] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._publish)

    def _publish(self) -> None:
        self._is_scheduled = False
        moved, self._moved = self._moved, {}
        self.bus.publish(
            HighWatermarkUpdated(tp=partition.tp, high_watermark=partition.high_watermark)
            for partition in moved
        )
