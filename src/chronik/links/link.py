"""A connection between two nodes: who is there is proven first (`handshake`), then frames flow both ways.

Every frame is a type byte and a body, and where the nodes have a secret and no TLS a tag (`seal`).

Both ends send a sign of life every `BEAT_SECONDS` and close a link on which nothing came for
`SILENCE_SECONDS_MAX`: a host that lost its power closes no connection, and an idle link would stay open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from chronik.links.handshake import Handshake, LinkIdentity, Message, Proof, ProvenPeer
from chronik.links.outbox import Outbox
from chronik.links.seal import TAG_BYTES, Seal
from chronik.log_lines import RepeatingLine
from chronik.model import NodeId, PeerError
from chronik.wire.frames import FrameDecoder

log = logging.getLogger(__name__)
_refused: Final = RepeatingLine(log, logging.WARNING, "closing the %s link with node %d: %s")
_stranger: Final = RepeatingLine(log, logging.WARNING, "closing a new link of %s: %s")

HANDSHAKE_SECONDS_MAX: Final = 5.0
_HANDSHAKE_BYTES_MAX: Final = 4096
BEAT_SECONDS: Final = 1.0
SILENCE_SECONDS_MAX: Final = 5.0
_BEAT: Final = 0
"""A frame of this type is only a sign of life."""


class LinkHandler(Protocol):
    """What is done with an open link."""

    def on_open(self, link: Link) -> None: ...
    def on_frame(self, link: Link, frame: memoryview) -> None: ...
    def on_closed(self, link: Link) -> None: ...
    def on_writable(self, link: Link) -> None: ...


class Link(asyncio.BufferedProtocol):
    """One end of a connection. The dialer speaks first."""

    get_buffer: Callable[[int], memoryview]  # type: ignore[assignment]

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
        self.get_buffer = self._decoder.space
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handler: LinkHandler | None = None
        self._shaking: Handshake | None = None
        self._is_proven = False
        self._opening: Seal | None = None
        self.outbox = Outbox(self._loop)
        self._timer: asyncio.TimerHandle | None = None
        self.peer_id: NodeId = dial[0] if dial else -1
        self.purpose = dial[1] if dial else ""
        self.peer_host = ""
        """The address at the other end."""
        self.opened = False
        """Whether the handshake ever succeeded."""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.last_heard = self._loop.time()
        self.is_reading = True

    # --- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.peer_host, *_ = transport.get_extra_info("peername") or ("",)
        self.outbox.open(transport)
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS_MAX, self.abort)
        try:
            certified = self._certified(transport)
        except PeerError as error:
            self._refuse(error)
            return
        self._shaking = Handshake(self._identity, dial=self._dial, certified=certified)
        if self._dial is not None:
            self._say(self._shaking.hello())

    def _certified(self, transport: asyncio.Transport) -> NodeId | None:
        """The node of the peer's certificate; None if the connection has no TLS."""
        tls = self._identity.tls
        if tls is None or transport.get_extra_info("ssl_object") is None:
            return None
        return tls.peer(transport.get_extra_info("peercert"))

    def _refuse(self, error: PeerError) -> None:
        if self.peer_id >= 0:
            _refused((self.peer_id, self.purpose), self.purpose or "new", self.peer_id, error)
        elif self._transport is not None:
            _stranger(self.peer_host, self.peer_host or "?", error)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.outbox.close()
        if self._timer is not None:
            self._timer.cancel()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.on_closed(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard = self._loop.time()
        try:
            for frame in self._decoder.received(nbytes):
                if self._opening is not None:
                    frame = self._opening.opened(frame)
                if self._handler is None:
                    self._shake(frame)
                elif frame[0] != _BEAT:
                    self._handler.on_frame(self, frame)
                if self._transport is None:
                    return
        except PeerError as error:
            self._refuse(error)

    def pause_writing(self) -> None:
        self.outbox.pause()

    def resume_writing(self) -> None:
        self.outbox.resume()
        if self._handler is not None:
            self._handler.on_writable(self)

    def pause_reading(self) -> None:
        """Leave what the peer sends in its socket, until `resume_reading`."""
        if self.is_reading and self._transport is not None:
            self.is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_reading and self._transport is not None:
            self.is_reading = True
            self.last_heard = self._loop.time()  # while reading was paused, silence means nothing
            self._transport.resume_reading()

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

    def _say(self, message: Message) -> None:
        self.outbox.send(msgspec.msgpack.encode(message))

    def _shake(self, frame: memoryview) -> None:
        shaking = self._shaking
        assert shaking is not None
        answer = shaking.received(frame)
        if isinstance(answer, Proof):
            self._say(answer)  # what follows it is sealed, if anything is
        if shaking.peer is not None and not self._is_proven:
            self._proven(shaking.peer)
        if answer is not None and not isinstance(answer, Proof):
            self._say(answer)
        if shaking.is_done:
            self._shaking = None
            self._opened()

    def _proven(self, peer: ProvenPeer) -> None:
        self._is_proven = True
        self.peer_id, self.purpose = peer.node_id, peer.purpose
        self.outbox.seal_with(peer.sealing)
        self._opening = peer.opening
        self._decoder.allow(self._frame_bytes_max + TAG_BYTES)

    def _opened(self) -> None:
        handler = self._handler_for(self.purpose)
        if handler is None:
            raise PeerError(f"this port serves no {self.purpose[:40]!r} links")
        if self._timer is not None:
            self._timer.cancel()
        self._handler = handler
        self.opened = True
        if self._dial is not None and self._transport is not None:
            host, port = (self._transport.get_extra_info("peername") or ("?", 0))[:2]
            log.info("Connected to follower %d at %s:%d (%s)", self.peer_id, host, port, self.purpose)
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        handler.on_open(self)

    def _beat(self) -> None:
        if self._transport is None:
            return
        if self.is_reading and self._loop.time() - self.last_heard > SILENCE_SECONDS_MAX:
            log.info("%s: node %d has gone silent", self.purpose, self.peer_id)
            self.abort()
            return
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        self.outbox.send(bytes([_BEAT]))
