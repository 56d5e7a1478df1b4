"""A connection between two nodes: who is there is proven first, then frames flow both ways.

Both sides prove that they know the cluster's secret without sending it: each draws a nonce and answers the
other's with an HMAC over both nonces, both node ids and its role. A node of another cluster, or one without
the secret, gets no further. After that every frame is a type byte and a body.

Both ends send a sign of life when they have nothing else to say, and give up a link on which none comes: a
host that lost its power closes no connection, and an idle link would stay open for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from chronik.model import NodeId, PeerError
from chronik.records.batch import Buffer
from chronik.wire.frames import FrameDecoder

log = logging.getLogger(__name__)

PROTOCOL: Final = "chronik-link-1"
HANDSHAKE_SECONDS_MAX: Final = 5.0
_NONCE_BYTES: Final = 32
_HANDSHAKE_BYTES_MAX: Final = 4096
BEAT_SECONDS: Final = 1.0
SILENCE_SECONDS_MAX: Final = 5.0
_BEAT: Final = 0
"""A frame of this type is only a sign of life."""
WRITE_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    protocol: str
    node_id: NodeId
    to: NodeId
    purpose: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    node_id: NodeId
    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The acceptor is content: the dialer may send frames."""


_Handshake = Hello | Challenge | Proof | Welcome


def _prove(secret: bytes, role: bytes, hello: Hello, acceptor: NodeId, nonce: bytes) -> bytes:
    parts = (
        role,
        hello.purpose.encode(),
        hello.node_id.to_bytes(8, "big"),
        acceptor.to_bytes(8, "big"),
        hello.nonce,
        nonce,
    )
    return hmac.new(secret, b"\x00".join(parts), hashlib.sha256).digest()


class LinkHandler(Protocol):
    """What is done with an open link."""

    def on_open(self, link: Link) -> None: ...
    def on_frame(self, link: Link, frame: memoryview) -> None: ...
    def on_closed(self, link: Link) -> None: ...
    def on_writable(self, link: Link) -> None: ...


class LinkIdentity(msgspec.Struct, frozen=True):
    """What this node is to its peers."""

    node_id: NodeId
    secret: bytes
    new_nonce: Callable[[], bytes]


class Link(asyncio.BufferedProtocol):
    """One end of a connection. The dialer speaks first."""

    def __init__(
        self,
        identity: LinkIdentity,
        handler_for: Callable[[str], LinkHandler | None],
        frame_bytes_max: int,
        *,
        dial: tuple[NodeId, str] | None = None,
    ) -> None:
        """`dial` is the node and the purpose, if this end opened the connection."""
        self._identity = identity
        self._handler_for = handler_for
        self._dial = dial
        self._frame_bytes_max = frame_bytes_max
        self._decoder = FrameDecoder(_HANDSHAKE_BYTES_MAX)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handler: LinkHandler | None = None
        self._hello: Hello | None = None
        self._nonce = b""
        self._is_proven = False
        self._out: list[Buffer] = []
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.peer_id: NodeId = dial[0] if dial else -1
        self.purpose = dial[1] if dial else ""
        self.writable = True
        self.opened = False
        """Whether the handshake ever succeeded."""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.last_heard = self._loop.time()

    # --- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS_MAX, self.abort)
        if self._dial is not None:
            node_id, purpose = self._dial
            nonce = self._identity.new_nonce()
            self._hello = Hello(PROTOCOL, self._identity.node_id, node_id, purpose, nonce)
            self._say(self._hello)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        if self._timer is not None:
            self._timer.cancel()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.on_closed(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.space()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard = self._loop.time()
        try:
            for frame in self._decoder.received(nbytes):
                if self._handler is None:
                    self._shake(frame)
                elif frame[0] != _BEAT:
                    self._handler.on_frame(self, frame)
                if self._transport is None:
                    return
        except PeerError as error:
            log.warning("closing the %s link with node %d: %s", self.purpose or "new", self.peer_id, error)
            self.abort()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._handler is not None:
            self._handler.on_writable(self)

    @property
    def is_dialed(self) -> bool:
        """Whether this end opened the connection."""
        return self._dial is not None

    @property
    def is_open(self) -> bool:
        return self._handler is not None and self._transport is not None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- handshake ---------------------------------------------------------------------------------

    def _say(self, message: _Handshake) -> None:
        assert self._transport is not None
        body = msgspec.msgpack.encode(message)
        self._transport.write(len(body).to_bytes(4, "big") + body)

    def _shake(self, frame: memoryview) -> None:
        try:
            message = msgspec.msgpack.decode(frame, type=_Handshake)
        except msgspec.DecodeError as error:
            raise PeerError("not a node of this cluster: the handshake makes no sense") from error
        match message:
            case Hello() if self._dial is None and self._hello is None:
                self._on_hello(message)
            case Challenge() if self._dial is not None:
                self._on_challenge(message)
            case Proof() if self._dial is None and self._hello is not None:
                self._on_proof(message)
            case Welcome() if self._dial is not None and self._is_proven:
                self._opened()
            case _:
                raise PeerError("handshake messages out of order")

    def _on_hello(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise PeerError(f"the peer speaks {hello.protocol[:40]!r}, this node {PROTOCOL!r}")
        if hello.to != self._identity.node_id or hello.node_id == self._identity.node_id:
            raise PeerError(
                f"node {hello.node_id} looks for node {hello.to}, this is {self._identity.node_id}"
            )
        if len(hello.nonce) != _NONCE_BYTES or not 0 <= hello.node_id < 2**31:
            raise PeerError("a nonce of the wrong size")
        self._hello = hello
        self._nonce = self._identity.new_nonce()
        proof = _prove(self._identity.secret, b"acceptor", hello, self._identity.node_id, self._nonce)
        self._say(Challenge(self._identity.node_id, self._nonce, proof))

    def _on_challenge(self, challenge: Challenge) -> None:
        assert self._hello is not None
        if challenge.node_id != self.peer_id:
            raise PeerError(f"node {challenge.node_id} answers where node {self.peer_id} should be")
        expected = _prove(self._identity.secret, b"acceptor", self._hello, self.peer_id, challenge.nonce)
        if not hmac.compare_digest(expected, challenge.proof):
            raise PeerError(f"node {challenge.node_id} does not know this cluster's secret")
        self._is_proven = True
        self._decoder.allow(self._frame_bytes_max)
        self._say(Proof(_prove(self._identity.secret, b"dialer", self._hello, self.peer_id, challenge.nonce)))

    def _on_proof(self, proof: Proof) -> None:
        assert self._hello is not None
        expected = _prove(self._identity.secret, b"dialer", self._hello, self._identity.node_id, self._nonce)
        if not hmac.compare_digest(expected, proof.proof):
            raise PeerError(f"node {self._hello.node_id} does not know this cluster's secret")
        self.peer_id = self._hello.node_id
        self.purpose = self._hello.purpose
        self._decoder.allow(self._frame_bytes_max)
        self._say(Welcome())
        self._opened()

    def _opened(self) -> None:
        handler = self._handler_for(self.purpose)
        if handler is None:
            raise PeerError(f"this port serves no {self.purpose[:40]!r} links")
        if self._timer is not None:
            self._timer.cancel()
        self._handler = handler
        self.opened = True
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        handler.on_open(self)

    def _beat(self) -> None:
        if self._transport is None:
            return
        if self._loop.time() - self.last_heard > SILENCE_SECONDS_MAX:
            log.info("%s: node %d has gone silent", self.purpose, self.peer_id)
            self.abort()
            return
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        self.send(bytes([_BEAT]))

    # --- frames ------------------------------------------------------------------------------------

    def send(self, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Queue a frame; everything queued in one turn of the loop leaves in one write."""
        if self._transport is None:
            return
        size = len(head) + sum(map(len, body))
        self._out.append(size.to_bytes(4, "big") + head)
        self._out += body
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.writelines(out)
