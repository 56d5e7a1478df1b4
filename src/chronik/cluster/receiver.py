"""Handles what other nodes send on the links of the metadata quorum."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection
from typing import Protocol

from chronik.cluster.known_nodes import KnownNodes
from chronik.cluster.transport import (
    FORWARD_HEAD,
    FORWARD_SECONDS_MAX,
    FORWARDED_HEAD,
    ClusterTransport,
    QuorumFrame,
)
from chronik.links.link import Link
from chronik.metadata.commands import RegisterBroker, decode_entry
from chronik.metadata.events import PeerDisconnected
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, NodeId, PeerError, RequestError, TooNew, Unavailable
from chronik.raft import decode
from chronik.raft.messages import Message
from chronik.tasks import Tasks


class Raft(Protocol):
    """What messages are handed to (the driver)."""

    def step(self, message: Message) -> None: ...
    def propose(self, data: bytes) -> int: ...
    def has_room(self, data: bytes) -> bool: ...
    async def append(self, data: bytes, *, may_ask: bool) -> int: ...
    def report_unreachable(self, peer: NodeId) -> None: ...
    @property
    def members(self) -> Collection[NodeId]: ...


class RaftReceiver:
    def __init__(
        self,
        *,
        node_id: NodeId,
        transport: ClusterTransport,
        raft: Raft,
        metadata: MetadataStore,
        known: KnownNodes,
        status: Callable[[], bytes],
    ) -> None:
        """`status` makes the answer for a peer that asks for this node's status."""
        self._node_id = node_id
        self._transport = transport
        self._raft = raft
        self._metadata = metadata
        self._known = known
        self._status = status
        self._tasks = Tasks("transport")

    async def stop(self) -> None:
        await self._known.stop()
        await self._tasks.close()

    def on_open(self, link: Link) -> None:
        self._transport.connected(link)

    def on_closed(self, link: Link) -> None:
        peer = link.peer_id
        self._transport.disconnected(link)
        if not self._transport.is_connected(peer):
            self._metadata.bus.publish([PeerDisconnected(node_id=peer)])
        self._raft.report_unreachable(peer)

    def on_writable(self, link: Link) -> None:
        self._transport.waiting.changed()

    def on_frame(self, link: Link, frame: memoryview) -> None:
        self._transport.heard(link)
        match frame[0]:
            case QuorumFrame.MESSAGE:
                message = decode(bytes(frame[1:]))
                if message.sender != link.peer_id or message.to != self._node_id:
                    raise PeerError("a message names another sender than the node that sent it")
                if self._known.admits(message):
                    self._raft.step(message)
            case QuorumFrame.FORWARD:
                self._on_forward(link, frame)
            case QuorumFrame.FORWARDED:
                _, number, index, code = _unpack(FORWARDED_HEAD, frame)
                text = str(frame[FORWARDED_HEAD.size :], "utf-8", "replace")
                self._transport.forwarded(link, number, index, code, text)
            case QuorumFrame.ASK:
                self._on_ask(link, frame)
            case QuorumFrame.QUERY:
                _, number = _unpack(FORWARD_HEAD, frame)
                link.outbox.send(FORWARD_HEAD.pack(QuorumFrame.ANSWER, number) + self._status_now())
            case QuorumFrame.ANSWER:
                _, number = _unpack(FORWARD_HEAD, frame)
                self._transport.answered(link, number, bytes(frame[FORWARD_HEAD.size :]))
            case _:
                raise PeerError(f"unknown frame type {frame[0]}")

    def _status_now(self) -> bytes:
        """Empty while the metadata log is loaded again after a failed write: the asker need not wait."""
        try:
            return self._status()
        except Unavailable:
            return b""

    def _on_forward(self, link: Link, frame: memoryview) -> None:
        _, number = _unpack(FORWARD_HEAD, frame)
        data = bytes(frame[FORWARD_HEAD.size :])
        try:
            self._check_membership(link.peer_id, data)
            if not self._raft.has_room(data):
                self._pass_on_later(link, number, data)
                return
            index = self._raft.propose(data)
        except (Unavailable, RequestError) as error:
            _refuse(link, number, error)
        else:
            link.outbox.send(FORWARDED_HEAD.pack(QuorumFrame.FORWARDED, number, index, 0))

    def _on_ask(self, link: Link, frame: memoryview) -> None:
        """A node that may not be a member yet asks for a command to be passed on."""
        _, number = _unpack(FORWARD_HEAD, frame)
        data = bytes(frame[FORWARD_HEAD.size :])
        try:
            self._check_membership(link.peer_id, data)
        except (Unavailable, RequestError) as error:
            _refuse(link, number, error)
            return
        self._pass_on_later(link, number, data)

    def _check_membership(self, peer: NodeId, data: bytes) -> None:
        """Only members change the metadata. All that a node may do before it is one is to register itself."""
        state = self._metadata.state
        if peer in state.removed:
            refusal = f"node {peer} was removed from this cluster; `add-node` lets it in again"
            raise RequestError(ErrorCode.invalid_registration, refusal)
        if peer in state.brokers or peer in self._raft.members:
            return
        try:
            command = decode_entry(data).command
        except TooNew as error:
            raise PeerError(f"node {peer} is not a member and sent something other than a command") from error
        if not isinstance(command, RegisterBroker) or command.broker_id != peer:
            raise Unavailable(f"node {peer} is not a member of this cluster yet")

    def _pass_on_later(self, link: Link, number: int, data: bytes) -> None:
        """Forward the command in a task: the link has to be read meanwhile, since answers that make room
        arrive on it. The sender bounds how much waits."""
        passing = self._pass_on(link, number, data)
        self._tasks.spawn(passing, f"passing on a command of node {link.peer_id}")

    async def _pass_on(self, link: Link, number: int, data: bytes) -> None:
        try:
            async with asyncio.timeout(FORWARD_SECONDS_MAX):  # nobody waits for the answer after that
                index = await self._raft.append(data, may_ask=False)
        except TimeoutError:
            _refuse(link, number, Unavailable("too much metadata waits to be committed"))
        except (Unavailable, RequestError) as error:
            _refuse(link, number, error)
        else:
            link.outbox.send(FORWARDED_HEAD.pack(QuorumFrame.FORWARDED, number, index, 0))


def _refuse(link: Link, number: int, error: Unavailable | RequestError) -> None:
    code = error.code if isinstance(error, RequestError) else 0
    link.outbox.send(FORWARDED_HEAD.pack(QuorumFrame.FORWARDED, number, -1, code) + str(error).encode())


def _unpack(layout: struct.Struct, frame: memoryview) -> tuple[int, ...]:
    try:
        return layout.unpack_from(frame)
    except struct.error:
        raise PeerError("a frame is cut short") from None
