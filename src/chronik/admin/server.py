"""The HTTP port: a socket of its own, uvicorn's protocol on the node's loop, limits for slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Any, Final

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from chronik.admin.app import PROBES_ONLY, AdminApp
from chronik.admin.callers import CERTIFICATE
from chronik.admin.connection_limits import Admission, admit
from chronik.admin.context import AdminContext
from chronik.admin.counts import HttpStats
from chronik.admin.errors import Failure
from chronik.admin.routes import ENDPOINTS
from chronik.log_lines import RepeatingLine
from chronik.model import Limits
from chronik.server.reloading import Reloaded
from chronik.server.tls_stream import ReceiveBuffer, TlsStream
from chronik.tasks import Tasks

__all__ = ["HttpServer"]

log = logging.getLogger(__name__)
_crowded: Final = RepeatingLine(
    log,
    logging.WARNING,
    "no room for one more HTTP connection: %d are open; a quiet one is closed, else only probes are answered",
)

HEADER_BYTES_MAX: Final = 32 * 1024
HEADER_SECONDS_MAX: Final = 10
KEEP_ALIVE_SECONDS: Final = 30
UNREAD_SECONDS_MAX: Final = 30
STOP_SECONDS_MAX: Final = 1.0
DECRYPTED_BYTES: Final = 64 * 1024
RELOAD_SECONDS: Final = 15.0
"""How often the certificate's files are looked at."""


class _Protocol(H11Protocol):
    """uvicorn's, but a client that is slow to send a request's head, or to take an answer, is let go."""

    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def __init__(self, limits: Limits, stats: HttpStats, received: memoryview, **given: Any) -> None:
        """`received` is a buffer that all connections share: it is empty again before another one reads."""
        super().__init__(**given)
        self._limits = limits
        self._stats = stats
        self._received = received
        self.silent_since = self.loop.time()
        self.host = ""
        self.is_probe = False

    def arrived(self, transport: asyncio.Transport) -> float | None:
        """Ask to be admitted, before a TLS handshake; None if that is refused. A handshake that goes on
        counts as a connection: else anybody could have as many as the system gives descriptors."""
        self.host = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._has_room():
            return None
        self.transport = transport
        self.connections.add(self)
        self.is_probe = self.app_state[PROBES_ONLY]
        return 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self.transport is None and self.arrived(transport) is None:
            transport.abort()
            return
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if secured is not None:
            self.app_state[CERTIFICATE] = secured.getpeercert()
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEADER_SECONDS_MAX, self._head_late)

    def _has_room(self) -> bool:
        # Connections that were told to close do not count: that they are closed is reported a turn of the
        # loop later.
        connections = [
            one for one in self.connections if isinstance(one, _Protocol) and not one.transport.is_closing()
        ]
        admission, leaves = admit(connections, self.host, self._limits.http_connections_max)
        self.app_state[PROBES_ONLY] = admission is Admission.PROBE
        if leaves is not None or admission is not Admission.ADMITTED:
            self._stats.refused += 1
            _crowded("http", len(connections))
        if leaves is not None:
            leaves.transport.abort()
        return admission is not Admission.REFUSED

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """What `TlsStream` decrypted."""
        self.data_received(bytes(self._received[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self.silent_since = self.loop.time()
        super().data_received(data)
        if not self.waits_for_head:
            self._stop_head_timer()
        elif self._head_timer is None:  # the begin of a further request
            self._head_timer = self.loop.call_later(HEADER_SECONDS_MAX, self._head_late)

    @property
    def waits_for_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def waits_for_client(self) -> bool:
        """True while no request is being handled: the next one, or the rest of it, has yet to arrive."""
        return self.waits_for_head or self.cycle.more_body

    def send_400_response(self, msg: str) -> None:
        """In JSON, as every failure; uvicorn's is text, and cannot be sent where an answer has begun."""
        cycle = self.cycle if not self.waits_for_head else None
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(Failure("malformed_request", msg))
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            events = [h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(body)]
            if cycle is not None and cycle.scope["method"] == "HEAD":
                del events[1]  # its answer has no body, and h11 refuses to send one
            for event in (*events, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if cycle is not None:
            # The request is answered: it waits for no more of its body, and its own answer is not sent.
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.silent_since = self.loop.time()
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
        if self.waits_for_head:
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
        # Otherwise every probe of a port scanner would be a warning in the node's log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config = config
        self._limits = context.services.limits
        self._stats = context.http
        self._state = uvicorn.Server(config).server_state
        self._server: asyncio.Server | None = None
        self._tls: Reloaded[ssl.SSLContext] | None = None
        self._encrypted = ReceiveBuffer()
        self._decrypted = memoryview(bytearray(DECRYPTED_BYTES))
        self._tasks = Tasks("HTTP")

    async def start(self, listening: socket.socket, tls: Reloaded[ssl.SSLContext] | None) -> None:
        self._tls = tls
        self._server = await asyncio.get_running_loop().create_server(self._protocol, sock=listening.dup())
        if tls is not None:
            self._tasks.spawn(self._keep_reloading(tls), "certificates of HTTP")

    async def _keep_reloading(self, tls: Reloaded[ssl.SSLContext]) -> None:
        """New connections get what the files hold; those that are open stay as they are."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            tls.reload()

    def _protocol(self) -> asyncio.BaseProtocol:
        empty: dict[str, Any] = {}
        protocol = _Protocol(
            self._limits,
            self._stats,
            self._decrypted,
            config=self._config,
            server_state=self._state,
            app_state=empty,
        )
        return protocol if self._tls is None else TlsStream(protocol, self._tls.held, self._encrypted)

    async def stop(self) -> None:
        """Accept nothing new, give what is under way a moment, close."""
        await self._tasks.close()
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
