"""Carries events from the state to its subscribers; a subscriber that lags never blocks the publisher."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from chronik.metadata.events import Event, HighWatermarkUpdated, Resync

__all__ = ["EventBus", "Subscription"]

_RESYNC: Final = Resync()


class Subscription:
    """An ordered, bounded queue of events for one subscriber.

    When it overflows, everything in it is dropped for one Resync: the subscriber then reads the state itself,
    which is always newer than any event it missed.
    """

    def __init__(self, bus: EventBus, kinds: tuple[type[Event], ...], capacity: int) -> None:
        self._bus = bus
        self._capacity = capacity
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.kinds = kinds

    def push(self, event: Event) -> None:
        if len(self._events) >= self._capacity:
            self._events.clear()
            event = _RESYNC
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def drain(self) -> list[Event]:
        """Everything that is waiting, without waiting."""
        events = list(self._events)
        self._events.clear()
        return events

    async def next_batch(self) -> list[Event]:
        """At least one event; all that have gathered since the last call."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.drain()

    @property
    def depth(self) -> int:
        """Events that wait to be taken."""
        return len(self._events)

    def close(self) -> None:
        self._bus.remove(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class EventBus:
    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._listeners: list[Callable[[Event], None]] = []
        self.wants_watermarks = False
        """Whether anybody subscribed to `HighWatermarkUpdated`: too frequent to be published for nobody."""

    def subscribe(self, *kinds: type[Event], capacity: int = 4096) -> Subscription:
        """Receive events of these kinds (all, if none is named) from now on; Resync always comes."""
        subscription = Subscription(self, kinds, capacity)
        self._subscriptions.append(subscription)
        self._look_who_wants_watermarks()
        return subscription

    def listen(self, callback: Callable[[Event], None]) -> None:
        """Have `callback` called in the very turn in which an event is published. It must not block."""
        self._listeners.append(callback)

    def remove(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._look_who_wants_watermarks()

    def _look_who_wants_watermarks(self) -> None:
        self.wants_watermarks = any(
            not one.kinds or HighWatermarkUpdated in one.kinds for one in self._subscriptions
        )

    @property
    def depth(self) -> int:
        """Events that the slowest subscriber has yet to take."""
        return max((one.depth for one in self._subscriptions), default=0)

    def publish(self, events: Iterable[Event]) -> None:
        for event in events:
            for callback in self._listeners:
                callback(event)
            for subscription in self._subscriptions:
                if not subscription.kinds or isinstance(event, (*subscription.kinds, Resync)):
                    subscription.push(event)
