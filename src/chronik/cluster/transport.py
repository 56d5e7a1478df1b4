"""What the metadata quorum says to other nodes: two links to each, one for the log, one for everything else.

Appends and their answers take the metadata link on the replication port, at once (the fast path). Votes,
heartbeats and snapshots take the link on the Raft port. With the fast path off, appends wait for the
next tick and take the Raft port too; receivers take any message from any link, so both kinds of nodes mix.

Commands of nodes that do not lead travel on the same links. A node that is no member yet knows no leader: it
asks any peer, which passes the command on. What comes in is the receiver's (`receiver`).
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import struct
from typing import Any, Final

import msgspec

from chronik.cluster.waiting_queue import WaitingQueue
from chronik.links.link import Link
from chronik.log_lines import RepeatingLine
from chronik.model import ErrorCode, NodeId, RequestError, Unavailable
from chronik.raft import encode
from chronik.raft.messages import AppendEntries, AppendResponse, Message

log = logging.getLogger("chronik.raft.transport")
"""Below `chronik.raft`, so that its level holds for these lines too."""
_fell_back: Final = RepeatingLine(
    log, logging.INFO, "Raft fallback: metadata for node %d goes by ticks on the Raft port (%s)"
)

RAFT: Final = "raft"
METADATA: Final = "metadata"


class QuorumFrame(enum.IntEnum):
    """The first byte of a frame on the links of the metadata quorum."""

    MESSAGE = 1
    """A Raft message follows."""
    FORWARD = 2
    """A command for the leader: its number (uint64), which the answer repeats, then the command's entry."""
    FORWARDED = 3
    """The answer to FORWARD and ASK: the number (uint64), the index of the command's entry (int64; -1: it was
    refused), Kafka's error code (int16; 0 for "try again"), then the error's text in UTF-8."""
    ASK = 4
    """Like FORWARD, for a node that does not know the leader: a receiver that does not lead passes it on."""
    QUERY = 5
    """Asks for the receiver's status: a number (uint64), which the answer repeats."""
    ANSWER = 6
    """The answer to QUERY: the number (uint64), then a `RaftStatus` in msgpack, or nothing."""


FORWARD_HEAD: Final = struct.Struct(">BQ")
"""FORWARD, ASK, QUERY, ANSWER: type, number."""
FORWARDED_HEAD: Final = struct.Struct(">BQqh")
"""FORWARDED: type, number, index, error code."""
FORWARD_SECONDS_MAX: Final = 5.0
FORWARDING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of commands that wait for the leader's answer: it may have to keep all of them in memory."""


class Carried(msgspec.Struct):
    """Appends and their answers that one kind of link has taken since the node started."""

    messages: int = 0
    entries: int = 0
    bytes: int = 0


class ClusterTransport:
    """Sends on whichever link there is, and keeps watch over who is connected."""

    def __init__(self, *, node_id: NodeId, use_fast_path: bool) -> None:
        self._node_id = node_id
        self._use_fast_path = use_fast_path
        self._loop = asyncio.get_running_loop()
        self._out: dict[tuple[str, NodeId], Link] = {}
        """Links that this node dialed; what it has to say goes there."""
        self._in: dict[tuple[str, NodeId], Link] = {}
        """Links that peers opened; used for a peer that has no link in `_out`. A peer that joined while this
        node was down may lead. Its address is in entries that only the leader sends, so it is answered
        here."""
        self._open: dict[NodeId, set[Link]] = {}
        self._on_tick: list[Message] = []
        self._forwards: dict[int, tuple[Link, asyncio.Future[int]]] = {}
        self._queries: dict[int, tuple[Link, asyncio.Future[bytes]]] = {}
        self._ids = itertools.count(1)
        self._forwarding_bytes = 0
        self.waiting = WaitingQueue()
        """Commands for the leader wait here while it does not read, or has not taken those before them."""
        self.last_heard: dict[NodeId, float] = {}
        self._disconnected_since: dict[NodeId, float | None] = {}
        self._started = self._loop.time()
        self.fast_count = 0
        self.fallback_count = 0
        """Appends that had to wait for a tick instead of taking the fast path."""
        self.carried = {METADATA: Carried(), RAFT: Carried()}

    def is_connected(self, peer: NodeId) -> bool:
        return bool(self._open.get(peer))

    def connected_peers(self) -> list[NodeId]:
        return sorted(peer for peer, links in self._open.items() if links)

    def disconnected_since(self, peer: NodeId) -> float | None:
        """When the last connection with a node broke; None while there is one.

        Every node keeps watch: when the controller dies, its successor knows at once for how long.
        """
        return None if peer == self._node_id else self._disconnected_since.get(peer, self._started)

    # --- sending -----------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        if isinstance(message, AppendEntries | AppendResponse):
            if self._use_fast_path and self._send_on(METADATA, message):
                self.fast_count += 1
            else:
                self.fallback_count += 1
                _fell_back(
                    message.to, message.to, "no stream" if self._use_fast_path else "the setting says so"
                )
                self._on_tick.append(message)
        elif not self._send_on(RAFT, message):
            self._send_on(METADATA, message)

    def tick(self) -> None:
        """Send the appends that could not take the fast path. Raft resends those that get lost."""
        waiting, self._on_tick = self._on_tick, []
        for message in waiting:
            if not self._send_on(RAFT, message):
                self._send_on(METADATA, message)

    def _send_on(self, purpose: str, message: Message) -> bool:
        link = self._link(purpose, message.to)
        if link is None or not link.outbox.is_writable:
            return False
        frame = bytes([QuorumFrame.MESSAGE]) + encode(message)
        link.outbox.send(frame)
        if isinstance(message, AppendEntries | AppendResponse):
            carried = self.carried[purpose]
            carried.messages += 1
            carried.entries += len(message.entries) if isinstance(message, AppendEntries) else 0
            carried.bytes += len(frame)
        return True

    def _link(self, purpose: str, peer: NodeId) -> Link | None:
        return self._out.get((purpose, peer)) or self._in.get((purpose, peer))

    async def forward(self, leader: NodeId, data: bytes) -> int:
        link = self._link(METADATA, leader) or self._link(RAFT, leader)
        if link is None:
            raise Unavailable(f"no connection to the leader, node {leader}")
        return await self._request(link, QuorumFrame.FORWARD, data)

    async def ask_around(self, data: bytes) -> int:
        """Have a peer pass `data` on to the leader, for a node that does not know who leads."""
        problem = Unavailable("the cluster has no leader now")
        for link in [self._out[key] for key in sorted(self._out)]:
            if link.is_open and link.purpose == METADATA:
                try:
                    return await self._request(link, QuorumFrame.ASK, data)
                except Unavailable as error:
                    problem = error
        raise problem

    async def _request(self, link: Link, type_: QuorumFrame, data: bytes) -> int:
        number = next(self._ids)
        answer: asyncio.Future[int] = self._loop.create_future()
        self._forwards[number] = (link, answer)
        began, sent = self._loop.time(), 0
        try:
            async with asyncio.timeout(FORWARD_SECONDS_MAX):
                await self.waiting.enter(lambda: answer.done() or self._has_room(link, len(data)))
                sent = len(data)
                self._forwarding_bytes += sent
                link.outbox.send(FORWARD_HEAD.pack(type_, number) + data)
                index = await answer
            log.debug("Raft RPC took %.1f ms (node %d)", (self._loop.time() - began) * 1000, link.peer_id)
            return index
        except TimeoutError:
            raise Unavailable(f"node {link.peer_id} did not answer") from None
        finally:
            del self._forwards[number]
            self._forwarding_bytes -= sent
            self.waiting.changed()

    def _has_room(self, link: Link, size: int) -> bool:
        under_way = self._forwarding_bytes
        return link.outbox.is_writable and (not under_way or under_way + size <= FORWARDING_BYTES_MAX)

    async def ask_status(self, peer: NodeId) -> bytes:
        """What `status` gives on another node."""
        link = self._link(RAFT, peer) or self._link(METADATA, peer)
        if link is None:
            raise Unavailable(f"no connection to node {peer}")
        number = next(self._ids)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._queries[number] = (link, answer)
        link.outbox.send(FORWARD_HEAD.pack(QuorumFrame.QUERY, number))
        try:
            async with asyncio.timeout(FORWARD_SECONDS_MAX):
                return await answer
        except TimeoutError:
            raise Unavailable(f"node {peer} did not answer") from None
        finally:
            del self._queries[number]

    # --- what the receiver reports -------------------------------------------------------------------

    def connected(self, link: Link) -> None:
        self._open.setdefault(link.peer_id, set()).add(link)
        self._disconnected_since[link.peer_id] = None
        self.last_heard[link.peer_id] = self._loop.time()
        (self._out if link.is_dialed else self._in)[link.purpose, link.peer_id] = link

    def disconnected(self, link: Link) -> None:
        links = self._open.get(link.peer_id, set())
        links.discard(link)
        if not links:
            self._disconnected_since[link.peer_id] = self._loop.time()
        known = self._out if link.is_dialed else self._in
        if known.get((link.purpose, link.peer_id)) is link:
            del known[link.purpose, link.peer_id]
        waiting: list[tuple[Link, asyncio.Future[Any]]] = [*self._forwards.values(), *self._queries.values()]
        for used, answer in waiting:
            if used is link and not answer.done():
                answer.set_exception(Unavailable(f"the connection to node {link.peer_id} broke"))
        self.waiting.changed()

    def heard(self, link: Link) -> None:
        self.last_heard[link.peer_id] = self._loop.time()

    def forwarded(self, link: Link, number: int, index: int, code: int, text: str) -> None:
        """A node has answered a command that was forwarded to it."""
        asked, answer = self._forwards.get(number, (None, None))
        if asked is not link or answer is None or answer.done():
            return
        if index >= 0:
            answer.set_result(index)
        else:
            answer.set_exception(RequestError(ErrorCode(code), text) if code else Unavailable(text))

    def answered(self, link: Link, number: int, status: bytes) -> None:
        """A node has answered with its status."""
        asked, answer = self._queries.get(number, (None, None))
        if asked is link and answer is not None and not answer.done():
            answer.set_result(status)
