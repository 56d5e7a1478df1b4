"""Wakes HTTP calls that wait for records of a topic, by the events of moving high watermarks (S08, S25).

Moves are published only while somebody subscribes, so there is one subscription for all calls, and only
while one waits.
"""

from __future__ import annotations

import asyncio
from typing import Final

from chronik.metadata.bus import EventBus, Subscription
from chronik.metadata.events import HighWatermarkUpdated, Resync, TopicDeleted
from chronik.model import Unavailable
from chronik.tasks import Tasks

__all__ = ["WatermarkWaits"]

WAITS_MAX: Final = 1_000
"""Calls that may wait at once. A client that went away is noticed only when its wait is over."""


class WatermarkWaits:
    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._events: Subscription | None = None
        self._tasks = Tasks("watermark waits")
        self._closed = False

    async def moved(self, topic: str) -> None:
        """Wait until a watermark of this topic moves on this node, the topic is deleted, or the node stops.

        The caller checks the present watermark first, and must not await anything between that check and this
        call.
        """
        if self._closed:
            return
        if self._count >= WAITS_MAX:
            raise Unavailable(f"{WAITS_MAX} calls wait for records already")
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic, set()).add(woken)
        self._count += 1
        if self._events is None:
            self._events = self._bus.subscribe(HighWatermarkUpdated, TopicDeleted)
            self._tasks.spawn(self._follow(self._events), "following watermarks")
        try:
            await woken
        finally:
            self._count -= 1
            waiting = self._waiting[topic]
            waiting.discard(woken)
            if not waiting:
                del self._waiting[topic]
            if not self._count and self._events is not None:
                self._events.close()
                self._events = None
                self._tasks.cancel()

    async def _follow(self, events: Subscription) -> None:
        while True:
            for event in await events.next_batch():
                match event:
                    case HighWatermarkUpdated():
                        self._wake(event.tp.topic)
                    case TopicDeleted():
                        self._wake(event.topic)
                    case Resync():
                        self._wake(*self._waiting)
                    case _:
                        pass

    def _wake(self, *topics: str) -> None:
        for topic in topics:
            for woken in self._waiting.get(topic, ()):
                if not woken.done():
                    woken.set_result(None)

    async def close(self) -> None:
        """Answer every call that waits, so that none of them delays the end of the node."""
        self._closed = True
        self._wake(*self._waiting)
        await self._tasks.close()
