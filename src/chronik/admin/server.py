"""The HTTP port: a socket of its own, uvicorn's protocol on the node's loop, limits for slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from chronik.admin.app import AdminApp
from chronik.admin.context import AdminContext
from chronik.admin.routes import ENDPOINTS

__all__ = ["HttpServer"]

log = logging.getLogger(__name__)

HEADER_BYTES_MAX: Final = 32 * 1024
HEADER_SECONDS_MAX: Final = 10
KEEP_ALIVE_SECONDS: Final = 30
UNREAD_SECONDS_MAX: Final = 30
CONNECTIONS_MAX: Final = 500
STOP_SECONDS_MAX: Final = 1.0


class _Protocol(H11Protocol):
    """uvicorn's, but a client that is slow to send a request's head, or to take an answer, is let go."""

    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= CONNECTIONS_MAX:
            transport.abort()
            return
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEADER_SECONDS_MAX, self._head_late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._waits_for_head():
            self._stop_head_timer()
        elif self._head_timer is None:  # the begin of a further request
            self._head_timer = self.loop.call_later(HEADER_SECONDS_MAX, self._head_late)

    def _waits_for_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unread_timer is None and self.transport.get_write_buffer_size():
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS_MAX, self._unread)

    def _unread(self) -> None:
        self._unread_timer = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        if self.transport is not None:
            super().connection_lost(exc)

    def _head_late(self) -> None:
        self._head_timer = None
        if self._waits_for_head():
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpServer:
    def __init__(self, context: AdminContext) -> None:
        config = uvicorn.Config(
            AdminApp(ENDPOINTS, context),
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        )
        config.load()
        # Otherwise every probe of a port scanner is a warning in the node's log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config = config
        self._state = uvicorn.Server(config).server_state
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        patience = None if tls is None else HEADER_SECONDS_MAX
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol, sock=listening, ssl=tls, ssl_handshake_timeout=patience
        )

    def _protocol(self) -> _Protocol:
        empty: dict[str, Any] = {}
        return _Protocol(config=self._config, server_state=self._state, app_state=empty)

    async def stop(self) -> None:
        """Accept nothing new, give what is under way a moment, close."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if tasks := list(self._state.tasks):
            await asyncio.wait(tasks, timeout=STOP_SECONDS_MAX)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._state.connections):
            with contextlib.suppress(Exception):
                connection.transport.abort()
