"""Hosts joined by links with latency, jitter, limits and faults, one link per direction.

A blocked link carries nothing: what is sent waits, as TCP's retransmission makes it, and arrives in order
once the link is open again, unless an end gave up meanwhile. A connection attempt over it goes unanswered.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from typing import Any, Final

from chronik.sim.loop import SimLoop
from chronik.sim.process import Process
from chronik.sim.transport import FIN, RST, SimServer, SimTransport

SYN_RETRY_SECONDS: Final = 1.0
SYN_RETRIES_MAX: Final = 5
GIVE_UP_SECONDS: Final = 15.0
"""Time without any answer after which a sender's kernel ends the connection."""
_EPHEMERAL_PORT: Final = 32_768
_FRAGMENTS_MAX: Final = 4
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::", None})


class SimLink:
    """One direction between two hosts."""

    __slots__ = ("blocked", "bytes_per_second", "jitter_s", "latency_s", "source", "target")

    def __init__(self, source: str, target: str, latency_s: float, jitter_s: float) -> None:
        self.source = source
        self.target = target
        self.latency_s = latency_s
        self.jitter_s = jitter_s
        self.bytes_per_second = 0.0
        """0: as much as is sent."""
        self.blocked = False


class SimNetwork:
    def __init__(
        self,
        loop: SimLoop,
        rng: random.Random,
        *,
        latency_s: float = 0.0005,
        jitter_s: float = 0.0005,
        fragment_probability: float = 0.05,
    ) -> None:
        self.loop = loop
        loop.network = self
        self._rng = rng
        self._latency_s = latency_s
        self._jitter_s = jitter_s
        self._fragment_probability = fragment_probability
        self._links: dict[tuple[str, str], SimLink] = {}
        self._servers: dict[tuple[str, int], SimServer] = {}
        self._ports: dict[str, int] = {}
        self._connections: dict[SimTransport, None] = {}
        """Both ends of every connection that at least one end still knows."""
        self._count = 0
        self.tap: Callable[[SimTransport, bytes], bytes] | None = None
        """A wiretap: gets what is sent, returns what is carried instead."""
        self.hosts_off: dict[str, None] = {}
        """Hosts without power: a connection attempt gets no answer, not even a refusal."""

    def link(self, source: str, target: str) -> SimLink:
        found = self._links.get((source, target))
        if found is None:
            local = source == target
            found = SimLink(
                source, target, 1e-5 if local else self._latency_s, 0.0 if local else self._jitter_s
            )
            self._links[source, target] = found
        return found

    # --- listening and connecting --------------------------------------------------------------------

    def listen(self, process: Process, factory: Callable[[], Any], host: str | None, port: int) -> SimServer:
        address = (process.host, port or self._free_port(process.host))
        if address in self._servers:
            raise OSError(errno.EADDRINUSE, "address already in use")
        if host not in _WILDCARDS and host != process.host:
            raise OSError(errno.EADDRNOTAVAIL, f"{process.name} has no address {host}")
        server = SimServer(self, process, factory, address)
        self._servers[address] = server
        process.servers[server] = None
        return server

    def unlisten(self, server: SimServer) -> None:
        if self._servers.get(server.address) is server:
            del self._servers[server.address]
        server.process.servers.pop(server, None)

    def _free_port(self, host: str) -> int:
        port = self._ports.get(host, _EPHEMERAL_PORT)
        self._ports[host] = port + 1
        return port

    async def connect(
        self, process: Process, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[SimTransport, Any]:
        there = self.link(process.host, host)
        for _ in range(SYN_RETRIES_MAX):
            answer: asyncio.Future[SimTransport | None] = self.loop.create_future()
            if not there.blocked:
                arrival = self.loop.now + self._delay(there)
                self.loop.happen(arrival, self._on_syn, process, (host, port), answer)
            try:
                async with asyncio.timeout(SYN_RETRY_SECONDS):
                    transport = await answer
            except TimeoutError:
                continue
            if transport is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"connect to {host}:{port}")
            if transport.is_over:
                continue
            protocol = factory()
            transport.bind(protocol)
            return transport, protocol
        raise TimeoutError(errno.ETIMEDOUT, f"connect to {host}:{port}: no answer")

    def _on_syn(
        self, process: Process, address: tuple[str, int], answer: asyncio.Future[SimTransport | None]
    ) -> None:
        """At the listener's host."""
        host = address[0]
        back = self.link(host, process.host)
        if host in self.hosts_off or not process.alive or back.blocked:
            return
        server = self._servers.get(address)
        transport: SimTransport | None = None
        if server is not None and server.process.alive:
            transport = self._establish(process, server)
        arrival = self.loop.now + self._delay(back)
        self.loop.at(arrival, process, _answer, answer, transport)

    def _establish(self, process: Process, server: SimServer) -> SimTransport:
        self._count += 1
        own = (process.host, self._free_port(process.host))
        there = self.link(process.host, server.process.host)
        back = self.link(server.process.host, process.host)
        near = SimTransport(self, process, there, own, server.address, self._count)
        far = SimTransport(self, server.process, back, server.address, own, self._count)
        near.peer, far.peer = far, near
        self._connections[near] = self._connections[far] = None
        self.loop.soon(server.process, _accept, far, server)
        self.loop.trace.detail(process.name, f"connects to {server.process.name} (connection {self._count})")
        return near

    # --- carrying ----------------------------------------------------------------------------------

    def transmit(self, sender: SimTransport, what: object) -> None:
        """Bytes, FIN or RST leave `sender`'s host."""
        if not sender.process.alive and what is not RST:
            return
        if isinstance(what, bytes) and len(what) > 1 and self._rng.random() < self._fragment_probability:
            for piece in self._cut(what):
                sender.sent_count += 1
                self._send(sender, sender.sent_count, piece)
        else:
            sender.sent_count += 1
            self._send(sender, sender.sent_count, what)

    def _cut(self, data: bytes) -> list[bytes]:
        count = self._rng.randint(1, _FRAGMENTS_MAX)
        places = sorted(self._rng.randrange(1, len(data)) for _ in range(count))
        ends = [*dict.fromkeys(places), len(data)]
        starts = [0, *ends]
        return [data[start:end] for start, end in zip(starts, ends, strict=False)]

    def _send(self, sender: SimTransport, number: int, what: object) -> None:
        link = sender.link
        if link.blocked:
            self._stall(sender, number, what)
            return
        delay = link.latency_s + self._rng.random() * link.jitter_s
        if link.bytes_per_second and isinstance(what, bytes):
            delay += len(what) / link.bytes_per_second
        arrival = self.loop.now + delay
        if arrival < sender.last_arrival + 1e-9:
            arrival = sender.last_arrival + 1e-9
        sender.last_arrival = arrival
        self.loop.happen(arrival, self._arrive, sender, number, what)

    def _stall(self, sender: SimTransport, number: int, what: object) -> None:
        if not sender.stalled:
            self.loop.happen(self.loop.now + GIVE_UP_SECONDS, self._give_up, sender)
        sender.stalled.append((number, what))

    def _delay(self, link: SimLink) -> float:
        """The delay of a message without bytes."""
        return link.latency_s + self._rng.random() * link.jitter_s

    def _arrive(self, sender: SimTransport, number: int, what: object) -> None:
        if sender.link.blocked:
            self._stall(sender, number, what)  # lost on the way: TCP would send it again
            return
        peer = sender.peer
        if not peer.process.alive:
            if peer.process.host in self.hosts_off:
                if not sender.is_unheard:
                    sender.is_unheard = True
                    self.loop.happen(self.loop.now + GIVE_UP_SECONDS, self._give_up, sender)
            elif what is not RST:
                self._reset(sender)  # the host is there and knows no such connection
            return
        if not peer.is_over:
            peer.arrive(number, what)
        elif what is not RST and what is not FIN:
            self._reset(sender)

    def _reset(self, sender: SimTransport) -> None:
        back = sender.peer.link
        if back.blocked or sender.is_over:
            return
        arrival = self.loop.now + self._delay(back)
        self.loop.at(
            arrival, sender.process, sender.lose_soon, ConnectionResetError(errno.ECONNRESET, "reset")
        )

    def _give_up(self, sender: SimTransport) -> None:
        if sender.is_unheard or (sender.stalled and sender.link.blocked):
            sender.stalled.clear()
            sender.lose_soon(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    # --- faults ------------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        self.link(source, target).blocked = True

    def unblock(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if not link.blocked:
            return
        link.blocked = False
        for transport in list(self._connections):
            if transport.link is link and transport.stalled:
                self._send_stalled(transport)

    def _send_stalled(self, sender: SimTransport) -> None:
        """The retransmission timer fires some time after the link works again."""
        sender.last_arrival = max(sender.last_arrival, self.loop.now + self._rng.random() * 0.2)
        stalled, sender.stalled = sorted(sender.stalled, key=lambda each: each[0]), []
        for number, what in stalled:
            self._send(sender, number, what)

    def heal(self) -> None:
        """Remove all faults from all links."""
        for (source, target), link in self._links.items():
            self.unblock(source, target)
            local = source == target
            link.latency_s = 1e-5 if local else self._latency_s
            link.jitter_s = 0.0 if local else self._jitter_s
            link.bytes_per_second = 0.0

    def connections(self) -> list[SimTransport]:
        """One end of every open connection between two living processes."""
        return [
            transport
            for transport in self._connections
            if not transport.is_over and transport.process.alive and transport.peer.process.alive
        ]

    def break_connection(self, transport: SimTransport) -> None:
        """Break a connection as something in between does that drops its state: both ends get a reset, what
        was under way is lost."""
        for end in (transport, transport.peer):
            end.stalled.clear()
            end.lose_soon(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def process_died(self, process: Process, *, power_lost: bool) -> None:
        """Close its sockets. Peers get a reset, unless the host itself has lost power."""
        for server in list(process.servers):
            self.unlisten(server)
        if power_lost:
            self.hosts_off[process.host] = None
        for transport in list(process.transports):
            transport.is_over = True
            transport.stalled.clear()
            self.forget(transport)
            if not power_lost:
                self.transmit(transport, RST)
        process.transports.clear()

    def power_on(self, host: str) -> None:
        """Peers that have sent something to what ran here learn that it is gone; others when they do."""
        self.hosts_off.pop(host, None)
        for transport in list(self._connections):
            peer = transport.peer
            if transport.is_unheard and not peer.process.alive and peer.process.host == host:
                transport.is_unheard = False
                self._reset(transport)

    def forget(self, transport: SimTransport) -> None:
        self._connections.pop(transport, None)


def _answer(future: asyncio.Future[SimTransport | None], transport: SimTransport | None) -> None:
    if not future.done():
        future.set_result(transport)
    elif transport is not None:
        transport.abort()


def _accept(transport: SimTransport, server: SimServer) -> None:
    if transport.peer.is_over or not server.is_serving():
        transport.abort()
        return
    transport.bind(server.factory())
