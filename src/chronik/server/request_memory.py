"""How much memory clients' requests may hold: those under way, and those of clients that have stalled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chronik.server.connection import KafkaConnection

log = logging.getLogger(__name__)

STALL_SECONDS_MAX: Final = 5.0
"""How long a stalled connection may hold memory while `StalledMemory` is over its limit."""


class RequestMemory:
    """Bytes of request frames that are being worked on, over all connections."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self.held_bytes = 0
        self.full = False
        self._waiters: list[Callable[[], None]] = []

    def when_room(self, callback: Callable[[], None]) -> None:
        self._waiters.append(callback)

    def take(self, size: int) -> None:
        self.held_bytes += size
        self.full = self.held_bytes >= self._max

    def release(self, size: int) -> None:
        self.held_bytes -= size
        self.full = self.held_bytes >= self._max
        if self._waiters and not self.full:
            waiters, self._waiters = self._waiters, []
            for callback in waiters:
                callback()


class StalledMemory:
    """Bytes held for stalled connections: incomplete requests, or responses that the client does not read.

    Over the limit, connections that stalled for `STALL_SECONDS_MAX` are closed, the oldest stall first. Over
    twice the limit the oldest is closed at once. A well-behaved client reconnects and retries.
    """

    def __init__(self, bytes_max: int, now: Callable[[], float]) -> None:
        self._max = bytes_max
        self._now = now
        self._held: dict[KafkaConnection, tuple[int, float]] = {}
        """Bytes, and since when; oldest first."""
        self.held_bytes = 0
        self.closed = 0
        """Connections that were closed for this."""

    def note(self, connection: KafkaConnection, size: int) -> None:
        """`size` bytes are held for this connection now; 0 when it is no longer stalled."""
        former, since = self._held.get(connection, (0, -1.0))
        self.held_bytes += size - former
        if size:
            self._held[connection] = (size, since if since >= 0 else self._now())
        else:
            self._held.pop(connection, None)
        self.shed()

    def shed(self) -> None:
        while self.held_bytes > self._max:
            oldest, (_, since) = next(iter(self._held.items()))
            if self.held_bytes <= 2 * self._max and self._now() - since < STALL_SECONDS_MAX:
                return
            log.warning(
                "closing the connection of %s: stalled requests hold %d bytes, its own for the longest time",
                oldest.peer.peer_host,
                self.held_bytes,
            )
            oldest.abort()
            self.closed += 1
            self.note(oldest, 0)
