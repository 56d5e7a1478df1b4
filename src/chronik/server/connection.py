"""One Kafka client's connection: bytes in, requests to the dispatcher, responses out in order.

Requests of a connection may be under way side by side; their responses leave in the order of the requests.
Everything that became ready within one turn of the loop leaves in one write. The socket is not read while
too much is under way: requests of this connection, bytes of all connections, or the WAL's queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from chronik.metrics import clock
from chronik.model import PeerError
from chronik.records.batch import Buffer
from chronik.server.dispatch import Connection, Repeat
from chronik.wire.api import ApiKey, parse_request_header
from chronik.wire.frames import FrameDecoder

if TYPE_CHECKING:
    from chronik.server.listener import KafkaListener

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES_MAX: Final = 8 * 1024 * 1024
JOIN_BYTES_MAX: Final = 16 * 1024
"""Below this, one copy costs less than a write of many small buffers."""


class _Slot:
    """A request's place in the line of responses."""

    __slots__ = ("_connection", "api_key", "buffers", "frame_bytes", "is_done", "start", "started")

    def __init__(self, connection: KafkaConnection, frame_bytes: int, started: float) -> None:
        self._connection = connection
        self.frame_bytes = frame_bytes
        self.started = started
        self.api_key = int(ApiKey.PRODUCE)
        """Until the header is read: what is answered without reading it is one of these."""
        self.buffers: list[Buffer] = []
        self.is_done = False
        self.start: Callable[[], object] | None = None
        """Begins to answer, for a request that waits until those before it are answered."""

    def respond(self, buffers: list[Buffer] | None) -> None:
        """Give the response frame, or None if the request gets no answer. Only the first call counts."""
        if self.is_done:
            return
        self.is_done = True
        if buffers:
            self.buffers = buffers
        self._connection.slot_done()

    def close(self) -> None:
        """Close the connection: the only way to tell a client that wants no answer that something failed."""
        self.is_done = True
        self._connection.slot_done()
        self._connection.close()


class KafkaConnection(asyncio.BufferedProtocol):
    def __init__(self, listener: KafkaListener) -> None:
        self._listener = listener
        self._loop = listener.loop
        self._stats = listener.stats
        self._decoder = FrameDecoder(listener.limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._slots: deque[_Slot] = deque()
        self._answered: list[_Slot] = []
        """Slots at the head of the line whose answers leave with the next write."""
        self._flush_scheduled = False
        self._reading = True
        self._writable = True
        self._held_bytes = 0
        self._stalled_bytes = 0
        self._repeat: Repeat | None = None
        self.peer = Connection("", "", 0)
        self.last_active = self._loop.time()
        self.close_when_answered = False

    # --- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        own = transport.get_extra_info("sockname") or ("", 0)
        self.peer = Connection(str(peer[0]), str(own[0]), int(own[1]))
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        if not self._listener.admit(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.forget(self)
        self._listener.memory.release(self._held_bytes)
        self._held_bytes = 0
        self._note_stalled(0)
        self._answered.clear()
        self._slots.clear()

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        return not self._slots and not self._answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._writable = False
        if self._transport is not None:
            self._note_stalled(self._decoder.held_bytes + self._transport.get_write_buffer_size())
        self.update_reading()

    def resume_writing(self) -> None:
        self._writable = True
        self._note_stalled(self._decoder.held_bytes)
        self._start_next()
        self.update_reading()

    def _note_stalled(self, size: int) -> None:
        if size != self._stalled_bytes:
            self._stalled_bytes = size
            self._listener.stalled.note(self, size)

    def eof_received(self) -> bool:
        return False

    # --- requests ----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.space()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        self._stats.received_bytes += nbytes
        try:
            for frame in self._decoder.received(nbytes):
                self._on_frame(frame)
        except PeerError as error:
            log.info("closing the connection of %s: %s", self.peer.peer_host, error)
            self.close()
            return
        if self._writable and self._decoder.held_bytes != self._stalled_bytes:
            self._note_stalled(self._decoder.held_bytes)
        if self._listener.pressed or len(self._slots) >= self._listener.limits.requests_in_flight_max:
            self.update_reading()

    def _on_frame(self, frame: memoryview) -> None:
        listener, frame_bytes = self._listener, len(frame)
        slot = _Slot(self, frame_bytes, clock())
        self._slots.append(slot)
        self._held_bytes += frame_bytes
        listener.memory.take(frame_bytes)
        if self._repeat is not None and self._repeat.start(frame, slot):
            return
        header, offset = parse_request_header(frame)
        slot.api_key = header.api_key
        dispatcher = listener.dispatcher
        if header.api_key in dispatcher.in_turn and (
            len(self._slots) > 1 or self._answered or not self._writable
        ):
            slot.start = partial(dispatcher.start, header, frame, offset, self.peer, slot)
        else:
            self._repeat = dispatcher.start(header, frame, offset, self.peer, slot) or self._repeat

    def update_reading(self) -> None:
        """Read the socket or not, by what is under way now."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        limits = self._listener.limits
        wanted = self._writable and len(self._slots) < limits.requests_in_flight_max
        if wanted and self._listener.pressed:
            self._listener.when_relieved(self)
            wanted = False
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # --- responses ---------------------------------------------------------------------------------

    def slot_done(self) -> None:
        """A request got its answer, which leaves with others of this turn once all before it have theirs."""
        slots = self._slots
        while slots and slots[0].is_done:
            self._answered.append(slots.popleft())
        if self._answered and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _start_next(self) -> None:
        """Begin the request at the head of the line, if it waited for its turn and the client reads."""
        if self._writable and self._slots and (start := self._slots[0].start) is not None:
            self._slots[0].start = None
            try:
                start()
            except PeerError as error:
                log.info("closing the connection of %s: %s", self.peer.peer_host, error)
                self.close()

    def _flush(self) -> None:
        self._flush_scheduled = False
        answered, self._answered = self._answered, []
        transport = self._transport
        if transport is None:
            return
        if not transport.is_closing():
            self._send([buffer for slot in answered for buffer in slot.buffers], transport)
        # The client is at work again; what nobody waits for comes now.
        self._settle(answered)
        if self._slots:
            self._start_next()
        elif not self._answered:
            self._decoder.rest()
            if self.close_when_answered:
                self.close()
        if not self._reading:
            self.update_reading()

    def _send(self, buffers: list[Buffer], transport: asyncio.Transport) -> None:
        size = sum(map(len, buffers))
        self._stats.sent_bytes += size
        if len(buffers) > 1 and size < JOIN_BYTES_MAX:
            transport.write(b"".join(buffers))
        elif len(buffers) > 1:
            transport.writelines(buffers)
        elif buffers:
            transport.write(buffers[0])

    def _settle(self, answered: list[_Slot]) -> None:
        """Count what was answered, and give back the memory of its requests."""
        now, freed = clock(), 0
        for slot in answered:
            freed += slot.frame_bytes
            self._stats.answered(slot.api_key, now - slot.started)
        self._held_bytes -= freed
        self._listener.memory.release(freed)
