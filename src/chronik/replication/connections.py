"""Keeps this node connected to its peers: dials at once, again every second, and takes what others dial.

Refused and broken connections are normal (nodes start in any order), so they are told once, not every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from chronik.model import NodeId
from chronik.replication.link import Link, LinkHandler, LinkIdentity

log = logging.getLogger(__name__)

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
        """`on_refused` hears that the peer's host said that nobody listens there, and when it was asked."""
        self._identity = identity
        self._peer_id = peer_id
        self.address = address
        self._purpose = purpose
        self._handler = handler
        self._jitter = jitter
        self._on_refused = on_refused
        self._first_retry_seconds = first_retry_seconds
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._told = False
        self._hurry = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_open())

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
        """Do not wait long before the next attempt: what it tells is asked for."""
        self._hurry.set()

    async def _try(self) -> Link | None:
        loop = asyncio.get_running_loop()
        host, port = self.address
        dialed_at = loop.time()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, link = await loop.create_connection(
                    lambda: Link(
                        self._identity,
                        lambda purpose: self._handler,
                        FRAME_BYTES_MAX,
                        dial=(self._peer_id, self._purpose),
                    ),
                    host,
                    port,
                )
        except (OSError, TimeoutError) as error:
            if is_refusal(error):
                self._on_refused(self._peer_id, dialed_at)
            if not self._told:
                self._told = True
                log.info(
                    "%s: node %d at %s:%d is not there: %s", self._purpose, self._peer_id, host, port, error
                )
            return None
        self._told = False
        self._link = link
        return link

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._link is not None:
            self._link.abort()


def is_refusal(error: OSError) -> bool:
    """Of a name with several addresses (localhost) asyncio tells all failures in one text."""
    told = str(error)
    return isinstance(error, ConnectionRefusedError) or (
        0 < told.count("[Errno ") == told.count(f"[Errno {errno.ECONNREFUSED}]")
    )


class Acceptor:
    """A port that takes links from peers."""

    def __init__(self, identity: LinkIdentity, handlers: Mapping[str, LinkHandler]) -> None:
        self._identity = identity
        self._handlers = dict(handlers)
        self._server: asyncio.Server | None = None
        self._links: dict[Link, None] = {}

    async def start(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _accept(self) -> Link:
        link = Link(self._identity, self._handlers.get, FRAME_BYTES_MAX)
        self._links[link] = None
        link.closed.add_done_callback(partial(self._gone, link))
        return link

    def _gone(self, link: Link, _future: asyncio.Future[None]) -> None:
        self._links.pop(link, None)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.abort()
