"""The two ends of a simulated TCP connection, and the socket that accepts them.

What one end writes reaches the other in order, cut into pieces at the seed's choice, or not at all. A peer
that does not read makes the sender's buffer fill, as a TCP window does.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from chronik.sim.loop import SimHandle
from chronik.sim.process import Process

if TYPE_CHECKING:
    from chronik.sim.network import SimLink, SimNetwork

WINDOW_BYTES: Final = 128 * 1024
"""What the two kernels hold; anything beyond stays in the sender's own buffer."""
_HIGH_WATER_BYTES: Final = 64 * 1024

FIN: Final = object()
RST: Final = object()


class SimSocket:
    """Just enough of a socket for code that looks at it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setsockopt(self, *_: object) -> None:
        pass

    def fileno(self) -> int:
        return -1


class SimServer(asyncio.AbstractServer):
    def __init__(
        self, network: SimNetwork, process: Process, factory: Callable[[], Any], address: tuple[str, int]
    ) -> None:
        self._network = network
        self.process = process
        self.factory = factory
        self.address = address
        self.sockets: tuple[SimSocket, ...] = (SimSocket(address),)
        self._serving = True

    def close(self) -> None:
        self._serving = False
        self.sockets = ()
        self._network.unlisten(self)

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        await self._network.loop.create_future()

    async def wait_closed(self) -> None:
        pass

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    async def __aenter__(self) -> SimServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class SimTransport(asyncio.Transport):
    """One end. `peer` is the other; `link` carries from here to there."""

    def __init__(
        self,
        network: SimNetwork,
        process: Process,
        link: SimLink,
        own: tuple[str, int],
        other: tuple[str, int],
        number: int,
    ) -> None:
        super().__init__({"peername": other, "sockname": own, "socket": SimSocket(own)})
        self._network = network
        self._loop = network.loop
        self.process = process
        self.link = link
        self.number = number
        """Tells connections apart in the trace."""
        self.peer: SimTransport
        self._protocol: Any = None
        self._buffered: asyncio.BufferedProtocol | None = None
        # sending
        self.last_arrival = 0.0
        self.stalled: list[tuple[int, object]] = []
        """What a blocked link did not carry, with its number. Sent again, in order, when the link opens."""
        self.is_unheard = False
        """Whether something was sent to a host without power."""
        self.sent_count = 0
        self._unread_bytes = 0
        """Written here and not yet taken by the other end's protocol."""
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4
        self._protocol_paused = False
        # receiving
        self._incoming: deque[object] = deque()
        self._expected = 1
        self._early: dict[int, object] = {}
        """What arrived before something that was sent earlier, by number."""
        self._reading = True
        self._delivery = SimHandle(process, 0.0, self._deliver, (), process.context, network.loop)
        self._delivery_scheduled = False
        # ending
        self._closing = False
        self.is_over = False
        """No callback of the protocol will follow."""
        self._eof_sent = False

    def bind(self, protocol: Any) -> None:
        """Begin: the protocol hears of the connection, then of what has come in meanwhile."""
        self.process.transports[self] = None
        self.set_protocol(protocol)
        protocol.connection_made(self)
        self._schedule_delivery()

    # --- sending -----------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing or self._eof_sent or not len(data):
            return
        chunk = bytes(data)
        if self._network.tap is not None:
            chunk = self._network.tap(self, chunk)
            if not chunk:
                return
        self._unread_bytes += len(chunk)
        self._network.transmit(self, chunk)
        if self._unread_bytes - WINDOW_BYTES > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread_bytes - WINDOW_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_sent and not self._closing:
            self._eof_sent = True
            self._network.transmit(self, FIN)

    def _taken(self, count: int) -> None:
        """The other end's protocol has read `count` bytes."""
        self._unread_bytes -= count
        if self._protocol_paused and self.get_write_buffer_size() <= self._low:
            self._loop.soon(self.process, self._resume_writing)

    def _resume_writing(self) -> None:
        if self._protocol_paused and not self.is_over and self.get_write_buffer_size() <= self._low:
            self._protocol_paused = False
            self._protocol.resume_writing()

    # --- receiving ---------------------------------------------------------------------------------

    def arrive(self, number: int, what: object) -> None:
        """Called by the network: bytes, FIN or RST have reached this end's host."""
        if what is RST:
            self._incoming.clear()
            self._early.clear()
            self._incoming.append(what)
        elif number != self._expected:
            self._early[number] = what
            return
        else:
            self._incoming.append(what)
            self._expected += 1
            while self._early and (following := self._early.pop(self._expected, None)) is not None:
                self._incoming.append(following)
                self._expected += 1
        self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        if (
            self._incoming
            and not self._delivery_scheduled
            and self._protocol is not None
            and not self.is_over
        ):
            self._delivery_scheduled = True
            self._loop.run_soon(self._delivery)

    def _deliver(self) -> None:
        self._delivery_scheduled = False
        while self._incoming and not self.is_over:
            what = self._incoming[0]
            if what is RST:
                self._lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
                return
            if not self._reading or self._closing:
                return
            self._incoming.popleft()
            if what is FIN:
                self._on_fin()
            else:
                self._hand_over(what)  # type: ignore[arg-type]

    def _hand_over(self, chunk: bytes) -> None:
        self.peer._taken(len(chunk))
        if self._buffered is None:
            self._protocol.data_received(chunk)
            return
        protocol = self._buffered
        rest: bytes | memoryview = chunk
        while True:
            buffer: Any = protocol.get_buffer(-1)
            count = min(len(buffer), len(rest))
            buffer[:count] = rest if count == len(rest) else rest[:count]
            protocol.buffer_updated(count)
            if count == len(rest) or self._closing or self.is_over:
                return
            rest = memoryview(rest)[count:]

    def _on_fin(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule_delivery()

    # --- ending ------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._eof_sent:
            # Bytes that came and were not read make the kernel send a reset instead of a clean end.
            self._network.transmit(self, RST if self._incoming else FIN)
        self._loop.soon(self.process, self._end, None)

    def abort(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.stalled.clear()
        self._network.transmit(self, RST)
        self._loop.soon(self.process, self._end, None)

    def _lose(self, error: Exception) -> None:
        self._closing = True
        self._end(error)

    def lose_soon(self, error: Exception) -> None:
        """Called by the network: the connection is gone."""
        if not self.is_over and self.process.alive:
            self._loop.soon(self.process, self._lose_now, error)

    def _lose_now(self, error: Exception) -> None:
        if not self.is_over:
            self._lose(error)

    def _end(self, error: Exception | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._incoming.clear()
        self.process.transports.pop(self, None)
        self._network.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # --- protocol ----------------------------------------------------------------------------------

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
        self._buffered = protocol if isinstance(protocol, asyncio.BufferedProtocol) else None

    def get_protocol(self) -> Any:
        return self._protocol

    def __repr__(self) -> str:
        return f"<connection {self.number} of {self.process.name}>"
