"""TLS between a socket and a connection, with little memory for those that are idle.

asyncio's and uvloop's own TLS keep a receive buffer of 256 KiB for each connection, and OpenSSL's queues grow
to the largest burst and never shrink. Here all connections of a loop receive into one buffer, and what goes
through OpenSSL's queues goes in slices: so a connection keeps `SLICE_BYTES` or so for each direction,
whatever it has sent. The figures are in docs/decisions/0039-tls-in-slices.md.

To the socket this is a protocol, to the connection its transport. A connection is admitted, and counted
among those of its address, before its handshake; until that is done it is served nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from typing import Any, Final, Protocol

from chronik.log_lines import RepeatingLine
from chronik.records.batch import Buffer

__all__ = ["HANDSHAKE_SECONDS_MAX", "ReceiveBuffer", "TlsStream"]

log = logging.getLogger(__name__)
_broken: Final = RepeatingLine(log, logging.INFO, "closing the TLS connection of %s: %s")

SLICE_BYTES: Final = 16 * 1024
"""A TLS record's largest content."""
RECEIVE_BYTES: Final = 256 * 1024
HANDSHAKE_SECONDS_MAX: Final = 10.0
"""Longest a TLS handshake may take."""


class ReceiveBuffer:
    """What the sockets of one loop are read into. Its bytes are taken out before the loop reads the next."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVE_BYTES))


class App(Protocol):
    """The connection on top."""

    def arrived(self, transport: asyncio.Transport) -> float | None:
        """Before the handshake: seconds to hold it back, or None if the connection is refused."""

    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class TlsStream(asyncio.Transport, asyncio.BufferedProtocol):
    def __init__(self, app: App, context: ssl.SSLContext, received: ReceiveBuffer) -> None:
        super().__init__()
        self._app = app
        self._received = received.view
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._socket: asyncio.Transport | None = None
        self._is_open = False
        """The handshake is done."""
        self._is_paused = False
        self._is_closing = False
        self._timer: asyncio.TimerHandle | None = None

    # --- the socket's protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        delay_s = self._app.arrived(self)
        if delay_s is None:
            self.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay_s + HANDSHAKE_SECONDS_MAX, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._socket = None
        self._is_closing = True
        self._app.connection_lost(exc)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._is_open:
            self._app.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._app.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        for start in range(0, nbytes, SLICE_BYTES):
            self._incoming.write(self._received[start : min(start + SLICE_BYTES, nbytes)])
            if not self._is_paused:
                self._go_on()
            if self._is_closing:
                return

    # --- between the two ---------------------------------------------------------------------------

    def _go_on(self) -> None:
        try:
            if self._is_open or self._shake_hands():
                self._deliver()
        except ssl.SSLError as error:
            _broken("tls", self.get_extra_info("peername"), error.reason or error)
            self._flush()  # the alert, if there is one
            self.abort()

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        self._flush()
        self._stop_timer()
        self._is_open = True
        self._app.connection_made(self)
        return True

    def _deliver(self) -> None:
        """Give the connection everything that is complete, in as few and large pieces as it has room for."""
        tls, incoming, app = self._tls, self._incoming, self._app
        while (incoming.pending or tls.pending()) and not (self._is_paused or self._is_closing):
            space, have = app.get_buffer(-1), 0
            ended = False
            while have < len(space) and (incoming.pending or tls.pending()):
                try:
                    size = tls.read(len(space) - have, space[have:])
                except ssl.SSLWantReadError:
                    break
                if not size:
                    ended = True
                    break
                have += int(size)
            if have:
                app.buffer_updated(have)
            elif not ended:
                break
            if ended:
                self.close()
        if self._outgoing.pending:
            self._flush()

    def _flush(self) -> None:
        if self._socket is not None and self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    def _too_slow(self) -> None:
        _broken("tls", self.get_extra_info("peername"), "the handshake takes too long")
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the connection's transport ----------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        socket, encrypted = self._socket, []
        if socket is None or self._is_closing:
            return
        for data in list_of_data:
            for start in range(0, len(data), SLICE_BYTES):
                self._tls.write(data if len(data) <= SLICE_BYTES else _slice(data, start))
                encrypted.append(self._outgoing.read())
        if len(encrypted) == 1:
            socket.write(encrypted[0])
        elif encrypted:
            socket.writelines(encrypted)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._socket is None:
            return
        if self._is_open:
            # Says goodbye and does not wait for an answer.
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass
            self._flush()
        self._socket.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._socket is None or self._socket.is_closing()

    def is_reading(self) -> bool:
        return not self._is_paused

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._socket is not None and not self._is_closing:
            self._socket.resume_reading()
            asyncio.get_running_loop().call_soon(self._resumed)

    def _resumed(self) -> None:
        """What was received before the pause may hold a whole request, and nothing more may come."""
        if not self._is_paused and not self._is_closing:
            self._go_on()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._tls.getpeercert() if self._is_open else default
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return default if self._socket is None else self._socket.get_extra_info(name, default)


def _slice(data: Buffer, start: int) -> memoryview:
    return memoryview(data)[start : start + SLICE_BYTES]
