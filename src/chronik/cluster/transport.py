"""Raft between nodes: two links to each peer, one for the log, one for everything else.

Appends and their answers take the metadata link on the replication port, at once (the fast path). Votes,
heartbeats and snapshots take the link on the Raft port. With the fast path off, appends wait for the
next tick and take the Raft port too; receivers take any message from any link, so both kinds of nodes mix.

Commands of nodes that do not lead travel on the same links. A node that is no member yet knows no leader: it
asks any peer, which passes the command on.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from chronik.model import ErrorCode, NodeId, PeerError, RequestError, Unavailable
from chronik.raft import decode, encode
from chronik.raft.messages import AppendEntries, AppendResponse, Message
from chronik.replication.link import Link

RAFT: Final = "raft"
METADATA: Final = "metadata"

_MESSAGE: Final = 1
_FORWARD: Final = 2
_FORWARDED: Final = 3
_ASK: Final = 4
"""Like _FORWARD, but whoever gets it and does not lead passes it on."""
_QUERY: Final = 5
_ANSWER: Final = 6
_FORWARD_HEAD: Final = struct.Struct(">BQ")
_FORWARDED_HEAD: Final = struct.Struct(">BQqh")
FORWARD_SECONDS_MAX: Final = 5.0


class RaftInput(Protocol):
    """What the transport hands over (the driver)."""

    def step(self, message: Message) -> None: ...
    def propose(self, data: bytes) -> int: ...
    async def append(self, data: bytes, *, may_ask: bool) -> int: ...
    def report_unreachable(self, peer: NodeId) -> None: ...


class ClusterTransport:
    """Handler of both kinds of links, in both directions."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        use_fast_path: bool,
        refusal: Callable[[NodeId], str | None] = lambda _peer: None,
        status: Callable[[], bytes] = bytes,
        on_gone: Callable[[NodeId], None] = lambda _peer: None,
    ) -> None:
        """`refusal` says why a peer may not even ask to join; None if it may. `status` is told on request.

        `on_gone` hears that the last connection with a peer broke.
        """
        self._node_id = node_id
        self._refusal = refusal
        self._status = status
        self._on_gone = on_gone
        self._use_fast_path = use_fast_path
        self._loop = asyncio.get_running_loop()
        self._raft: RaftInput | None = None
        self._out: dict[tuple[str, NodeId], Link] = {}
        """Links that this node dialed; what it has to say goes there."""
        self._in: dict[tuple[str, NodeId], Link] = {}
        """Links that peers dialed. A peer that joined while this node was down has no address here until it
        has been answered: it may lead, and what tells of it comes from there."""
        self._open: dict[NodeId, set[Link]] = {}
        self._on_tick: list[Message] = []
        self._forwards: dict[int, tuple[Link, asyncio.Future[int]]] = {}
        self._queries: dict[int, tuple[Link, asyncio.Future[bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ids = itertools.count(1)
        self.last_heard: dict[NodeId, float] = {}
        self._gone_since: dict[NodeId, float | None] = {}
        self._started = self._loop.time()
        self.fast_count = 0
        self.fallback_count = 0
        """Appends that went by ticks on the Raft port instead of the fast path."""

    def attach(self, raft: RaftInput) -> None:
        self._raft = raft

    def is_connected(self, peer: NodeId) -> bool:
        return bool(self._open.get(peer))

    def gone_since(self, peer: NodeId) -> float | None:
        """When the last connection with a node broke; None while there is one.

        Every node keeps watch: when the controller dies, its successor knows at once for how long.
        """
        return None if peer == self._node_id else self._gone_since.get(peer, self._started)

    # --- sending -----------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        if isinstance(message, AppendEntries | AppendResponse):
            if self._use_fast_path and self._send_on(METADATA, message):
                self.fast_count += 1
            else:
                self.fallback_count += 1
                self._on_tick.append(message)
        elif not self._send_on(RAFT, message):
            self._send_on(METADATA, message)

    def tick(self) -> None:
        """Appends that could not go the fast way leave now; Raft itself makes up for any that get lost."""
        waiting, self._on_tick = self._on_tick, []
        for message in waiting:
            if not self._send_on(RAFT, message):
                self._send_on(METADATA, message)

    def _send_on(self, purpose: str, message: Message) -> bool:
        link = self._link(purpose, message.to)
        if link is None or not link.writable:
            return False
        link.send(bytes([_MESSAGE]) + encode(message))
        return True

    def _link(self, purpose: str, peer: NodeId) -> Link | None:
        return self._out.get((purpose, peer)) or self._in.get((purpose, peer))

    async def forward(self, leader: NodeId, data: bytes) -> int:
        link = self._link(METADATA, leader) or self._link(RAFT, leader)
        if link is None:
            raise Unavailable(f"no connection to the leader, node {leader}")
        return await self._request(link, _FORWARD, data)

    async def ask_around(self, data: bytes) -> int:
        """Have a peer pass `data` on to the leader, for a node that does not know who leads."""
        problem = Unavailable("the cluster has no leader now")
        for link in [self._out[key] for key in sorted(self._out)]:
            if link.is_open and link.purpose == METADATA:
                try:
                    return await self._request(link, _ASK, data)
                except Unavailable as error:
                    problem = error
        raise problem

    async def _request(self, link: Link, type_: int, data: bytes) -> int:
        number = next(self._ids)
        answer: asyncio.Future[int] = self._loop.create_future()
        self._forwards[number] = (link, answer)
        link.send(_FORWARD_HEAD.pack(type_, number) + data)
        try:
            async with asyncio.timeout(FORWARD_SECONDS_MAX):
                return await answer
        except TimeoutError:
            raise Unavailable(f"node {link.peer_id} did not answer") from None
        finally:
            del self._forwards[number]

    async def ask_status(self, peer: NodeId) -> bytes:
        """What `status` gives on another node."""
        link = self._link(RAFT, peer) or self._link(METADATA, peer)
        if link is None:
            raise Unavailable(f"no connection to node {peer}")
        number = next(self._ids)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._queries[number] = (link, answer)
        link.send(_FORWARD_HEAD.pack(_QUERY, number))
        try:
            async with asyncio.timeout(FORWARD_SECONDS_MAX):
                return await answer
        except TimeoutError:
            raise Unavailable(f"node {peer} did not answer") from None
        finally:
            del self._queries[number]

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- links -------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        self._open.setdefault(link.peer_id, set()).add(link)
        self._gone_since[link.peer_id] = None
        self.last_heard[link.peer_id] = self._loop.time()
        (self._out if link.is_dialed else self._in)[link.purpose, link.peer_id] = link

    def on_closed(self, link: Link) -> None:
        links = self._open.get(link.peer_id, set())
        links.discard(link)
        if not links:
            self._gone_since[link.peer_id] = self._loop.time()
            self._on_gone(link.peer_id)
        known = self._out if link.is_dialed else self._in
        if known.get((link.purpose, link.peer_id)) is link:
            del known[link.purpose, link.peer_id]
        waiting: list[tuple[Link, asyncio.Future[Any]]] = [*self._forwards.values(), *self._queries.values()]
        for used, answer in waiting:
            if used is link and not answer.done():
                answer.set_exception(Unavailable(f"the connection to node {link.peer_id} broke"))
        if self._raft is not None:
            self._raft.report_unreachable(link.peer_id)

    def on_writable(self, link: Link) -> None:
        pass

    def on_frame(self, link: Link, frame: memoryview) -> None:
        self.last_heard[link.peer_id] = self._loop.time()
        if self._raft is None:
            return
        match frame[0]:
            case 1:
                message = decode(bytes(frame[1:]))
                if message.sender != link.peer_id or message.to != self._node_id:
                    raise PeerError("a message in somebody else's name")
                self._raft.step(message)
            case 2:
                self._on_forward(link, frame)
            case 3:
                self._on_forwarded(frame)
            case 4:
                self._on_ask(link, frame)
            case 5:
                _, number = _unpack(_FORWARD_HEAD, frame)
                link.send(_FORWARD_HEAD.pack(_ANSWER, number) + self._status())
            case 6:
                _, number = _unpack(_FORWARD_HEAD, frame)
                _, answer = self._queries.get(number, (None, None))
                if answer is not None and not answer.done():
                    answer.set_result(bytes(frame[_FORWARD_HEAD.size :]))
            case _:
                raise PeerError(f"unknown frame type {frame[0]}")

    def _on_forward(self, link: Link, frame: memoryview) -> None:
        _, number = _unpack(_FORWARD_HEAD, frame)
        assert self._raft is not None
        try:
            index = self._raft.propose(bytes(frame[_FORWARD_HEAD.size :]))
        except (Unavailable, RequestError) as error:
            _refuse(link, number, error)
        else:
            link.send(_FORWARDED_HEAD.pack(_FORWARDED, number, index, 0))

    def _on_ask(self, link: Link, frame: memoryview) -> None:
        _, number = _unpack(_FORWARD_HEAD, frame)
        refusal = self._refusal(link.peer_id)
        if refusal is not None:
            _refuse(link, number, RequestError(ErrorCode.invalid_registration, refusal))
            return
        self._spawn(self._pass_on(link, number, bytes(frame[_FORWARD_HEAD.size :])))

    async def _pass_on(self, link: Link, number: int, data: bytes) -> None:
        assert self._raft is not None
        try:
            index = await self._raft.append(data, may_ask=False)
        except (Unavailable, RequestError) as error:
            _refuse(link, number, error)
        else:
            link.send(_FORWARDED_HEAD.pack(_FORWARDED, number, index, 0))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_forwarded(self, frame: memoryview) -> None:
        _, number, index, code = _unpack(_FORWARDED_HEAD, frame)
        _, answer = self._forwards.get(number, (None, None))
        if answer is None or answer.done():
            return
        if index >= 0:
            answer.set_result(index)
            return
        text = str(frame[_FORWARDED_HEAD.size :], "utf-8", "replace")
        answer.set_exception(RequestError(ErrorCode(code), text) if code else Unavailable(text))


def _refuse(link: Link, number: int, error: Unavailable | RequestError) -> None:
    code = error.code if isinstance(error, RequestError) else 0
    link.send(_FORWARDED_HEAD.pack(_FORWARDED, number, -1, code) + str(error).encode())


def _unpack(layout: struct.Struct, frame: memoryview) -> tuple[int, ...]:
    try:
        return layout.unpack_from(frame)
    except struct.error:
        raise PeerError("a frame is cut short") from None
