"""A port for links with TLS: takes connections, lets them shake hands, and bounds those that have not yet.

Connections are accepted here rather than by the loop's own server for three reasons: each handshake uses the
certificates of that moment, those under way are counted and can be closed, and while a cluster moves to TLS
a peer's first byte tells whether it speaks it yet.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from chronik.links.certificates import NodeTls
from chronik.links.link import HANDSHAKE_SECONDS_MAX, Link
from chronik.log_lines import RepeatingLine
from chronik.tasks import Tasks

log = logging.getLogger(__name__)
_failed: Final = RepeatingLine(log, logging.WARNING, "the TLS handshake with a peer at %s failed: %s")

HANDSHAKES_MAX: Final = 64
"""TLS handshakes under way at once; the oldest is closed for the next. Each holds up to 300 KiB."""
_BACKLOG: Final = 512
_ACCEPT_AGAIN_SECONDS: Final = 0.1
_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of a connection with TLS. A frame's length begins with 0."""


class TlsPort:
    def __init__(self, tls: NodeTls, new_link: Callable[[], Link], on_link: Callable[[Link], None]) -> None:
        """`on_link` gets each link whose TLS handshake succeeded."""
        self._tls = tls
        self._new_link = new_link
        self._on_link = on_link
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._accepting = Tasks("node port")
        self._handshakes = Tasks("handshakes")
        self.refused = 0
        """Handshakes that failed or were closed for others."""

    async def start(self, host: str, port: int) -> int:
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
            listening.setblocking(False)
            self._listening.append(listening)
            self._accepting.spawn(self._accept(listening), "accepting connections")
        bound: int = self._listening[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        await self._accepting.close()
        for listening in self._listening:
            listening.close()
        await self._handshakes.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listening)
            except OSError as error:
                _failed("accept", "any address", error)
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)  # out of descriptors, most likely
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                self._handshakes.cancel_oldest()
                self.refused += 1
            self._handshakes.spawn(self._admit(connection, address[0]), "a TLS handshake")

    async def _admit(self, connection: socket.socket, host: str) -> None:
        link = self._new_link()
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                context = None
                if self._tls.is_required or await self._speaks_tls(connection):
                    context = self._tls.server_context()
                await self._loop.connect_accepted_socket(lambda: link, connection, ssl=context)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            self.refused += 1
            _failed(host, host, error or "it took too long")
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
        else:
            self._on_link(link)

    async def _speaks_tls(self, connection: socket.socket) -> bool:
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
