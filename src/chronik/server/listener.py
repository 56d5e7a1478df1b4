"""The Kafka port: accepts connections, bounds them, holds back their sockets when the node is busy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, Protocol

from chronik.metrics import ServerStats
from chronik.model import Limits
from chronik.server.connection import KafkaConnection
from chronik.server.dispatch import Dispatcher

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 15.0
IDLE_SECONDS_MAX: Final = 600.0
STOP_SECONDS_MAX: Final = 1.0
STALL_SECONDS_MAX: Final = 5.0
"""How long a peer may keep memory bound while there is too little of it."""


class Pressure(Protocol):
    """Something with a bounded queue (the WAL, the flusher)."""

    @property
    def full(self) -> bool: ...
    def when_room(self, callback: Callable[[], None]) -> None: ...


class RequestMemory:
    """Bytes of request frames that are being worked on, over all connections."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._held = 0
        self._waiters: list[Callable[[], None]] = []

    @property
    def held_bytes(self) -> int:
        return self._held

    @property
    def full(self) -> bool:
        return self._held >= self._max

    def when_room(self, callback: Callable[[], None]) -> None:
        self._waiters.append(callback)

    def take(self, size: int) -> None:
        self._held += size

    def release(self, size: int) -> None:
        self._held -= size
        if self._waiters and self._held < self._max:
            waiters, self._waiters = self._waiters, []
            for callback in waiters:
                callback()


class StalledMemory:
    """Bytes held for peers that do not go on: half a frame, or answers they do not read.

    Beyond the limit those go that have kept the node waiting for long, the first of them first; beyond twice
    the limit the first goes at once. An honest client comes back and sends again.
    """

    def __init__(self, bytes_max: int, now: Callable[[], float]) -> None:
        self._max = bytes_max
        self._now = now
        self._held: dict[KafkaConnection, tuple[int, float]] = {}
        """Bytes, and since when; oldest first."""
        self.held_bytes = 0
        self.closed = 0
        """Connections that had to go."""

    def note(self, connection: KafkaConnection, size: int) -> None:
        """So much is held for this peer now; 0: it went on."""
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
                "closing the connection of %s: %d bytes are held for peers that do not go on, longest for it",
                oldest.peer.peer_host,
                self.held_bytes,
            )
            oldest.abort()
            self.closed += 1
            self.note(oldest, 0)


class KafkaListener:
    def __init__(self, *, dispatcher: Dispatcher, limits: Limits, pressures: tuple[Pressure, ...]) -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatcher = dispatcher
        self.limits = limits
        self.memory = RequestMemory(limits.request_memory_bytes_max)
        self.stalled = StalledMemory(limits.stalled_memory_bytes_max, self.loop.time)
        self._pressures = (self.memory, *pressures)
        self._held_back: dict[KafkaConnection, None] = {}
        self._connections: dict[KafkaConnection, None] = {}
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None
        self._held_back_since = 0.0
        self.stats = ServerStats()

    async def bind(self, host: str, port: int) -> int:
        """Take the port, without answering yet; returns it, since the system chose it if `port` is 0."""
        self._server = await self.loop.create_server(
            lambda: KafkaConnection(self), host, port, backlog=1024, start_serving=False
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def serve(self) -> None:
        """Clients may come."""
        if self._server is not None:
            await self._server.start_serving()
            self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    # --- connections -------------------------------------------------------------------------------

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def admit(self, connection: KafkaConnection) -> bool:
        if self._server is None or len(self._connections) >= self.limits.connections_max:
            log.warning("refused a connection: %d are open", len(self._connections))
            return False
        self._connections[connection] = None
        return True

    def forget(self, connection: KafkaConnection) -> None:
        self._connections.pop(connection, None)
        self._held_back.pop(connection, None)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def _sweep(self) -> None:
        """Close connections that have been silent for long with nothing under way."""
        oldest = self.loop.time() - IDLE_SECONDS_MAX
        for connection in list(self._connections):
            if connection.last_active < oldest and connection.is_idle:
                connection.close()
        self.stalled.shed()
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    # --- backpressure ------------------------------------------------------------------------------

    @property
    def pressed(self) -> bool:
        for pressure in self._pressures:  # noqa: SIM110 (asked for every read: a generator costs more)
            if pressure.full:
                return True
        return False

    def when_relieved(self, connection: KafkaConnection) -> None:
        self.stats.held_back += 1
        if not self._held_back:
            self._held_back_since = self.loop.time()
            for pressure in self._pressures:
                if pressure.full:
                    pressure.when_room(self._relieved)
        self._held_back[connection] = None

    def _relieved(self) -> None:
        held, self._held_back = self._held_back, {}
        if held:
            self.stats.held_back_seconds += self.loop.time() - self._held_back_since
        for connection in held:
            connection.update_reading()

    # --- stopping ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Accept nothing new, answer what is under way, close."""
        server, self._server = self._server, None
        if self._sweeper is not None:
            self._sweeper.cancel()
        if server is not None:
            server.close()
        for connection in list(self._connections):
            if connection.is_idle:
                connection.close()
            else:
                connection.close_when_answered = True
        self._emptied = asyncio.Event()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS_MAX):
                    await self._emptied.wait()
        for connection in list(self._connections):
            connection.abort()
