"""Keeps this node connected to its peers: dials at once, again every second, and takes what others dial.

Refused and broken connections are normal (nodes start in any order), so they are told once, not every second.
"""

from __future__ import annotations

import asyncio
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
        first_retry_seconds: float = 0.05,
    ) -> None:
        self._identity = identity
        self._peer_id = peer_id
        self.address = address
        self._purpose = purpose
        self._handler = handler
        self._jitter = jitter
        self._first_retry_seconds = first_retry_seconds
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._told = False

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
            await asyncio.sleep(min(wait, RETRY_SECONDS) + JITTER_SECONDS * self._jitter())

    async def _try(self) -> Link | None:
        loop = asyncio.get_running_loop()
        host, port = self.address
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
