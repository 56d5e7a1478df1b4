"""Keeps this node connected to its peers: dials at once, then every second, and accepts links from others.

Refused and broken connections are normal (nodes start in any order), so they are logged once, not each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from chronik.links.handshake import LinkIdentity
from chronik.links.link import Link, LinkHandler
from chronik.links.tls_port import TlsPort
from chronik.log_lines import RepeatingLine
from chronik.model import NodeId
from chronik.open_files import FileBudget
from chronik.tasks import Tasks

log = logging.getLogger(__name__)
_crowded: Final = RepeatingLine(
    log,
    logging.WARNING,
    "closed a connection that has not proven to be a node: the limit of %d such connections is reached",
)

_too_many: Final = RepeatingLine(
    log, logging.WARNING, "closed a %s link of node %d, which has newer ones; %d links are open"
)

LINKS_PER_PEER_MAX: Final = 4
RETRY_SECONDS: Final = 1.0
JITTER_SECONDS: Final = 0.2
CONNECT_SECONDS_MAX: Final = 3.0
FRAME_BYTES_MAX: Final = 128 * 1024 * 1024


class Dialer:
    """One outgoing link of one purpose to one peer, kept open."""

    def __init__(
        self,
        *,
        identity: LinkIdentity,
        peer_id: NodeId,
        address: tuple[str, int],
        purpose: str,
        handler: LinkHandler,
        jitter: Callable[[], float],
        on_refused: Callable[[NodeId, float], None] = lambda _peer, _dialed_at: None,
        first_retry_seconds: float = 0.05,
    ) -> None:
        """`on_refused` is called when the peer's host refuses a connection, with the time of the attempt."""
        self._identity = identity
        self._peer_id = peer_id
        self.address = address
        self._purpose = purpose
        self._handler = handler
        self._jitter = jitter
        self._on_refused = on_refused
        self._first_retry_seconds = first_retry_seconds
        self._tasks = Tasks(f"{purpose} link to node {peer_id}")
        self._link: Link | None = None
        self._told = False
        self._hurry = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.is_open

    def start(self) -> None:
        self._tasks.spawn(self._keep_open(), "keeping it open")

    async def _keep_open(self) -> None:
        failures = 0
        while True:
            link = await self._try()
            if link is not None:
                await link.closed
            was_open = link is not None and link.peer_id == self._peer_id and link.opened
            failures = 0 if was_open else failures + 1
            # A connection that broke is tried at once: the peer may only have restarted.
            wait = self._first_retry_seconds * 2**failures if failures < 5 else RETRY_SECONDS
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait, RETRY_SECONDS) + JITTER_SECONDS * self._jitter()):
                    await self._hurry.wait()
                    await asyncio.sleep(self._first_retry_seconds)

    def hurry(self) -> None:
        """Make the next attempt soon: somebody needs to know whether the peer is still there."""
        self._hurry.set()

    async def _try(self) -> Link | None:
        loop = asyncio.get_running_loop()
        host, port = self.address
        dialed_at = loop.time()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                link = await self._connect()
        except (OSError, TimeoutError) as error:
            if is_refusal(error):
                self._on_refused(self._peer_id, dialed_at)
            if not self._told:
                self._told = True
                log.info(
                    "Failed to connect to follower %d at %s:%d (%s): %s",
                    self._peer_id,
                    host,
                    port,
                    self._purpose,
                    error,
                )
            return None
        self._told = False
        self._link = link
        return link

    async def _connect(self) -> Link:
        tls = self._identity.tls
        if tls is None:
            return await self._open(None)
        try:
            return await self._open(tls.client_context())
        except (ConnectionRefusedError, ssl.SSLCertVerificationError):
            raise
        except (ssl.SSLError, ConnectionError):
            if tls.is_required:
                raise
            # The peer has not been restarted with TLS yet.
            return await self._open(None)

    async def _open(self, context: ssl.SSLContext | None) -> Link:
        host, port = self.address
        given: dict[str, Any] = {} if context is None else {"ssl": context}
        _, link = await asyncio.get_running_loop().create_connection(
            lambda: Link(
                self._identity,
                lambda purpose: self._handler,
                FRAME_BYTES_MAX,
                dial=(self._peer_id, self._purpose),
            ),
            host,
            port,
            **given,
        )
        return link

    async def stop(self) -> None:
        await self._tasks.close()
        if self._link is not None:
            self._link.abort()


def is_refusal(error: OSError) -> bool:
    """Whether every address refused. For a name with several addresses asyncio joins the errors' texts."""
    text = str(error)
    return isinstance(error, ConnectionRefusedError) or (
        0 < text.count("[Errno ") == text.count(f"[Errno {errno.ECONNREFUSED}]")
    )


class Acceptor:
    """A port that takes links from peers."""

    def __init__(self, identity: LinkIdentity, handlers: Mapping[str, LinkHandler]) -> None:
        self._identity = identity
        self._handlers = dict(handlers)
        self._server: asyncio.Server | TlsPort | None = None
        self._links: dict[Link, None] = {}
        self._strangers_max = FileBudget.of_process().strangers
        self._closed_for_others = 0
        self._opened_max = 2 * self._strangers_max

    @property
    def refused(self) -> int:
        """Connections closed before they had proven to be a node: to make room for newer ones, or by TLS."""
        by_tls = self._server.refused if isinstance(self._server, TlsPort) else 0
        return self._closed_for_others + by_tls

    def has_peer_at(self, host: str) -> bool:
        """Whether a node has proven itself from this address, on a connection that is still open."""
        return any(link.opened and link.peer_host == host for link in self._links)

    async def start(self, host: str, port: int) -> int:
        if self._identity.tls is not None:
            tls_port = TlsPort(self._identity.tls, self._new_link, self._keep)
            self._server = tls_port
            return await tls_port.start(host, port)
        loop = asyncio.get_running_loop()
        self._server = server = await loop.create_server(self._accept, host, port)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _new_link(self) -> Link:
        return Link(self._identity, self._handlers.get, FRAME_BYTES_MAX)

    def _accept(self) -> Link:
        link = self._new_link()
        self._keep(link)
        return link

    def _keep(self, link: Link) -> None:
        self._make_room()
        self._make_room_among_opened()
        self._links[link] = None
        link.closed.add_done_callback(partial(self._gone, link))

    def _make_room(self) -> None:
        """If too many links have not finished the handshake, close the oldest. A node takes milliseconds."""
        strangers = [link for link in self._links if not link.opened]
        if len(strangers) >= self._strangers_max:
            self._closed_for_others += 1
            _crowded("strangers", len(strangers))
            strangers[0].abort()
            self._links.pop(strangers[0], None)

    def _make_room_among_opened(self) -> None:
        """Close a node's older links of the same purpose. It keeps one open, so the older ones are dead, or
        somebody who knows the secret (or needs none) opens them to use up connections."""
        opened: dict[tuple[NodeId, str], list[Link]] = {}
        for link in self._links:
            if link.opened:
                opened.setdefault((link.peer_id, link.purpose), []).append(link)
        gone = [link for links in opened.values() for link in links[:-LINKS_PER_PEER_MAX]]
        count = sum(map(len, opened.values())) - len(gone)
        if count >= self._opened_max:
            gone += [links[0] for links in opened.values() if links[0] not in gone][:1]
        for link in gone:
            self._closed_for_others += 1
            _too_many("links", link.purpose, link.peer_id, count)
            link.abort()
            self._links.pop(link, None)

    def _gone(self, link: Link, _future: asyncio.Future[None]) -> None:
        self._links.pop(link, None)

    async def stop(self) -> None:
        if isinstance(self._server, TlsPort):
            await self._server.stop()
        elif self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.abort()
