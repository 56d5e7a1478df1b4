"""One Kafka client's connection: bytes in, requests to the dispatcher, responses out in order.

Requests of a connection may be under way side by side; their responses leave in the order of the requests.
Everything that became ready within one turn of the loop leaves in one write. The socket is not read while
too much is under way: requests of this connection, bytes of all connections, or the WAL's queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from chronik.log_lines import RepeatingLine
from chronik.metrics import clock
from chronik.model import PeerError
from chronik.records.batch import Buffer
from chronik.server.dispatch import Connection
from chronik.server.sasl import FRAME_BYTES_MAX, Session
from chronik.server.throttling import Cost, throttle
from chronik.wire.api import ApiKey, RequestHeader, parse_request_header
from chronik.wire.frames import FrameDecoder
from chronik.wire.schema import tell_throttle_time

if TYPE_CHECKING:
    from chronik.server.listener import Door, KafkaListener

log = logging.getLogger(__name__)
_closing: Final = RepeatingLine(log, logging.INFO, "closing the connection of %s: %s")

_PRODUCE: Final = int(ApiKey.PRODUCE)
WRITE_BUFFER_BYTES_MAX: Final = 8 * 1024 * 1024
JOIN_BYTES_MAX: Final = 16 * 1024
"""Below this, one copy costs less than a write of many small buffers."""


class _Slot(msgspec.Struct, eq=False):
    """A request's place in the line of responses."""

    _connection: KafkaConnection
    frame_bytes: int
    started: float
    api_key: int = _PRODUCE
    """Produce until the header is read: known requests skip the header, and all of them are Produce."""
    api_version: int = 0
    """Known only while there are quotas, as is `work_s`."""
    work_s: float = 0.0
    """For how long the request has kept the event loop busy."""
    buffers: Sequence[Buffer] = ()
    is_done: bool = False
    start: Callable[[], None] | None = None
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

    def worked(self, seconds: float) -> None:
        self.work_s += seconds


class KafkaConnection(asyncio.BufferedProtocol):
    get_buffer: Callable[[int], memoryview]  # type: ignore[assignment]

    def __init__(self, listener: KafkaListener, door: Door) -> None:
        self._door = door
        self._listener = listener
        self._loop = listener.loop
        self._stats = listener.stats
        self._decoder = FrameDecoder(listener.limits.frame_bytes_max)
        self.get_buffer = self._decoder.space
        self._session: Session | None = None
        self._client_id = ""
        self._muted_until = 0.0
        self._unmuting: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._slots: deque[_Slot] = deque()
        self._answered: list[_Slot] = []
        """Slots at the head of the line whose answers leave with the next write."""
        self._flush_scheduled = False
        self._reading = True
        self._writable = True
        self._held_bytes = 0
        self._stalled_bytes = 0
        self.peer = Connection("", "", 0)
        self.last_active = self.opened = self._loop.time()
        self.close_when_answered = False

    # --- transport ---------------------------------------------------------------------------------

    def arrived(self, transport: asyncio.Transport) -> float | None:
        """Ask to be admitted, before anything is read: seconds to wait for it, or None if that is refused."""
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        own = transport.get_extra_info("sockname") or ("", 0)
        self.peer = Connection(
            str(peer[0]), str(own[0]), int(own[1]), endpoint=self._door.endpoint, peer_port=int(peer[1])
        )
        wait_s = self._listener.admit(self, self._door)
        if wait_s:
            self._mute(self._loop.time() + wait_s)
        return wait_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._transport is None and self.arrived(transport) is None:
            transport.abort()
            return
        self._session = self.peer.session = self._door.session(self.peer.peer_host, transport)
        if self._session is not None:
            self.peer.access = self._session.access
            if self._session.needed:
                self._decoder.allow(FRAME_BYTES_MAX)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.forget(self)
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmute()
        self._listener.memory.release(self._held_bytes)
        self._held_bytes = 0
        self._note_stalled(0)
        self._answered.clear()
        self._slots.clear()
        self.peer.known.forget()

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

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        self._stats.received_bytes += nbytes
        try:
            for frame in self._decoder.received(nbytes):
                self._on_frame(frame)
        except PeerError as error:
            _closing(self.peer.peer_host, self.peer.peer_host, error)
            self.close()
            return
        if self._writable and self._decoder.held_bytes != self._stalled_bytes:
            self._note_stalled(self._decoder.held_bytes)
        if len(self._slots) >= self._listener.limits.requests_in_flight_max:
            self.update_reading()
            return
        for pressure in self._listener.pressures:
            if pressure.full:
                self.update_reading()
                return

    @property
    def is_stranger(self) -> bool:
        """Whether the client has not logged in yet."""
        return self._session is not None and not self._session.is_authenticated

    def _on_frame(self, frame: memoryview) -> None:
        listener, frame_bytes = self._listener, len(frame)
        slot = _Slot(self, frame_bytes, clock())
        self._slots.append(slot)
        self._held_bytes += frame_bytes
        listener.memory.take(frame_bytes)
        session, dispatcher = self._session, listener.dispatcher
        quotas = dispatcher.quotas
        if not quotas.is_empty:
            slot.api_version = int.from_bytes(frame[2:4], "big")
        if session is not None and session.expects_bare:
            listener.authenticate_bare(session, frame, self, slot)
            return
        if session is None or session.serves(None):
            call = self.peer.known.recall(frame, slot, dispatcher.metadata.applied_index)
            if call is not None:
                call.start(dispatcher)
                if quotas.measures_work:
                    slot.worked(clock() - slot.started)
                return
            header, offset = parse_request_header(frame)
        else:
            header, offset = parse_request_header(frame)
            if not session.serves(header.api_key):
                raise PeerError(f"{header.api_key.name} without a login")
            session.count_request()
        slot.api_key = header.api_key
        self._client_id = header.client_id or ""
        start = partial(self._read_and_start, header, frame, offset, slot)
        if header.api_key in dispatcher.in_turn and (
            len(self._slots) > 1 or self._answered or not self._writable
        ):
            slot.start = start
        else:
            start()
            if quotas.measures_work:
                slot.worked(clock() - slot.started)

    def _read_and_start(self, header: RequestHeader, frame: memoryview, offset: int, slot: _Slot) -> None:
        dispatcher = self._listener.dispatcher
        dispatcher.read(header, frame, offset, self.peer, slot).start(dispatcher)

    def update_reading(self) -> None:
        """Read the socket or not, by what is under way now."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        limits = self._listener.limits
        wanted = (
            self._writable and self._unmuting is None and len(self._slots) < limits.requests_in_flight_max
        )
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
        """A request has its response. It is sent with the next write, once all earlier ones are ready."""
        slots = self._slots
        while slots and slots[0].is_done:
            self._answered.append(slots.popleft())
        if self._answered and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _start_next(self) -> None:
        """Begin the request at the head of the line, if it waited for its turn and the client reads."""
        if self._writable and self._slots and (start := self._slots[0].start) is not None:
            slot, began = self._slots[0], clock()
            slot.start = None
            try:
                start()
                slot.worked(clock() - began)
            except PeerError as error:
                _closing(self.peer.peer_host, self.peer.peer_host, error)
                self.close()
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A bug has cost answers: without them the client would wait for ever, on this connection."""
        log.error("closing the connection of %s", self.peer.peer_host, exc_info=error)
        self.abort()

    def _flush(self) -> None:
        """Send the answers that became ready in this turn of the loop."""
        self._flush_scheduled = False
        answered, self._answered = self._answered, []
        if self._transport is None:
            return
        try:
            if not self._listener.dispatcher.quotas.is_empty and not self.is_stranger:
                self._throttle(answered)
            self._send(answered, self._transport)
            if self._session is not None:
                self._after_login(self._session)
            if self._slots:
                self._start_next()
            elif not self._answered:
                self._decoder.rest()
                if self.close_when_answered:
                    self.close()
            if not self._reading:
                self.update_reading()
        except Exception as error:
            self._failed(error)

    def _after_login(self, session: Session) -> None:
        if session.failed:
            self.close()
        elif session.is_authenticated and session.needed:
            self._decoder.allow(self._listener.limits.frame_bytes_max)

    def _send(self, answered: list[_Slot], transport: asyncio.Transport) -> None:
        """Write the responses; then count them and give back the memory of their requests."""
        if not transport.is_closing():
            buffers = [buffer for slot in answered for buffer in slot.buffers]
            size = sum(map(len, buffers))
            self._stats.sent_bytes += size
            if len(buffers) > 1 and size < JOIN_BYTES_MAX:
                transport.write(b"".join(buffers))
            elif len(buffers) > 1:
                transport.writelines(buffers)
            elif buffers:
                transport.write(buffers[0])
        now, freed = clock(), 0
        for slot in answered:
            freed += slot.frame_bytes
            self._stats.requests[slot.api_key].observe(now - slot.started)
        self._held_bytes -= freed
        self._listener.memory.release(freed)

    def _throttle(self, answered: list[_Slot]) -> None:
        """Charge the requests to the quotas. Over one, the answer says so and the socket is not read."""
        quotas, now = self._listener.dispatcher.quotas, self._loop.time()
        for slot in answered:
            cost = Cost(slot.api_key, slot.frame_bytes, sum(map(len, slot.buffers)), slot.work_s)
            over = throttle(quotas, self.peer.principal, self._client_id, cost, now)
            if over is None:
                continue
            wait_s, quota = over
            self._stats.throttled_seconds[quota] += wait_s
            if slot.buffers:
                head, *rest = slot.buffers
                answer = tell_throttle_time(slot.api_key, slot.api_version, bytes(head), round(wait_s * 1000))
                slot.buffers = [answer, *rest]
            self._mute(now + wait_s)

    def _mute(self, until: float) -> None:
        if until <= self._muted_until:
            return
        self._muted_until = until
        if self._unmuting is None:
            self._stats.throttled_connections += 1
        else:
            self._unmuting.cancel()
        self._unmuting = self._loop.call_at(until, self._unmute)
        self.update_reading()

    def _unmute(self) -> None:
        self._unmuting = None
        self._stats.throttled_connections -= 1
        self.update_reading()
