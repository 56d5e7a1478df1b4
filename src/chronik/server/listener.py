"""The Kafka port: accepts connections, bounds them, holds back their sockets when the node is busy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from chronik.log_lines import RepeatingLine
from chronik.metrics import ServerStats
from chronik.model import Limits, Pressure
from chronik.security.principals import ANONYMOUS
from chronik.security.quotas import Quotas
from chronik.server.call import answered_or_closed
from chronik.server.connection import KafkaConnection
from chronik.server.connection_limits import ConnectionLimits, is_of_this_machine
from chronik.server.dispatch import Dispatcher, Responder
from chronik.server.request_memory import RequestMemory, StalledMemory
from chronik.server.sasl import LOGIN_SECONDS_MAX, Authenticator, Session
from chronik.server.tls import ListenerTls, ServerContext
from chronik.server.tls_stream import ReceiveBuffer, TlsStream
from chronik.tasks import Tasks

log = logging.getLogger(__name__)
_full: Final = RepeatingLine(log, logging.WARNING, "refused a connection of %s: %d are open, the limit")
_greedy: Final = RepeatingLine(
    log, logging.WARNING, "refused a connection of %s: %d of this address are open, the limit"
)
_hasty: Final = RepeatingLine(log, logging.WARNING, "refused a connection of %s: %s")

SWEEP_SECONDS: Final = 15.0
IDLE_SECONDS_MAX: Final = 600.0
HOLD_BACK_SECONDS_MAX: Final = 5.0
"""Longest that a new connection is held back because its listener takes no more per second."""
STOP_SECONDS_MAX: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One listener: its TLS, and whether its clients must log in."""

    endpoint: str = "kafka"
    tls: ListenerTls | None = None
    authenticator: Authenticator | None = None
    """None: nobody is asked who they are, and everybody may do everything."""
    needs_login: bool = False
    takes_nodes: bool = False
    """Nodes may log in as such."""

    def session(self, host: str, transport: asyncio.BaseTransport) -> Session | None:
        if self.authenticator is None:
            return None
        principal: str | None = ANONYMOUS
        context = transport.get_extra_info("sslcontext")
        if self.tls is not None:
            principal = self.tls.principal(transport.get_extra_info("peercert"))
        session = Session(
            self.authenticator,
            host,
            needed=self.needs_login,
            takes_nodes=self.takes_nodes,
            principal=principal or ANONYMOUS,
            channel=context.shown if isinstance(context, ServerContext) else b"",
        )
        session.failed = principal is None
        return session


class KafkaListener:
    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        limits: Limits,
        pressures: tuple[Pressure, ...],
        configs: Callable[[], tuple[Mapping[str, str], ...]] = tuple,
        is_of_a_node: Callable[[str], bool] = lambda _host: False,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatcher = dispatcher
        self.limits = limits
        self._configs = configs
        """The broker's configs, strongest first: they may change some of the limits."""
        self._is_of_a_node = is_of_a_node
        """Whether an address is that of another node of the cluster."""
        self.memory = RequestMemory(limits.request_memory_bytes_max)
        self.stalled = StalledMemory(limits.stalled_memory_bytes_max, self.loop.time)
        self.pressures: tuple[Pressure, ...] = (self.memory, *pressures)
        """No socket is read while one of these is full."""
        self._held_back: dict[KafkaConnection, None] = {}
        self._connections: dict[KafkaConnection, None] = {}
        self._per_ip: Counter[str] = Counter()
        self._servers: list[asyncio.Server] = []
        self._is_open = True
        self._tls: ListenerTls | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None
        self._held_back_since = 0.0
        self._logins = Tasks("logins")
        self._received = ReceiveBuffer()
        self._accepted = Quotas()
        """Counts new connections per listener, for `max.connection.creation.rate`."""
        self.stats = ServerStats()

    async def bind(self, host: str, port: int, door: Door | None = None) -> int:
        """Take the port, without answering yet; returns it, since the system chose it if `port` is 0."""
        door = door or Door()
        self._tls = door.tls or self._tls

        def make() -> asyncio.BaseProtocol:
            connection = KafkaConnection(self, door)
            if door.tls is None:
                return connection
            return TlsStream(connection, door.tls.context, self._received)

        server = await self.loop.create_server(make, host, port, backlog=1024, start_serving=False)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def serve(self) -> None:
        """Clients may come."""
        for server in self._servers:
            await server.start_serving()
        if self._servers:
            self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def authenticate_bare(
        self, session: Session, message: memoryview, connection: KafkaConnection, responder: Responder
    ) -> None:
        """A login's message without Kafka's header, from a client of SaslHandshake version 0."""
        work = self._answer_bare(session, bytes(message), connection, responder)
        self._logins.spawn(answered_or_closed(work, responder), "a login")

    async def _answer_bare(
        self, session: Session, message: bytes, connection: KafkaConnection, responder: Responder
    ) -> None:
        answer = await session.authenticate(message)
        connection.peer.access = session.access
        if session.failed:
            responder.close()  # this form has no field for an error
        else:
            responder.respond([len(answer.data).to_bytes(4, "big") + answer.data])

    # --- connections -------------------------------------------------------------------------------

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connection_limits(self) -> ConnectionLimits:
        """The connection limits in force now."""
        return ConnectionLimits.resolve(self._configs(), self.limits)

    def admit(self, connection: KafkaConnection, door: Door) -> float | None:
        """Seconds until the connection is read, or None if it is refused. Refusals are counted, and logged at
        most once a minute."""
        host = connection.peer.peer_host
        if not self._is_open:
            return None
        is_kept_open = self._is_kept_open(connection, door)
        limits = ConnectionLimits.resolve((), self.limits) if is_kept_open else self.connection_limits()
        if len(self._connections) >= limits.total:
            self.stats.refused["max"] += 1
            _full("connections", host, len(self._connections))
            return None
        if self._per_ip[host] >= limits.per_ip:
            self.stats.refused["per_ip"] += 1
            _greedy(host, host, self._per_ip[host])
            return None
        quotas = self.dispatcher.quotas
        if not quotas.is_empty and quotas.take_connection(host, self.loop.time()) > 0:
            self.stats.refused["per_ip_rate"] += 1
            _hasty(host, host, "the quota of its address does not allow more per second")
            return None
        wait_s = self._wait_for_turn(door, limits.per_second, is_kept_open=is_kept_open)
        if wait_s > HOLD_BACK_SECONDS_MAX:
            self.stats.refused["rate"] += 1
            _hasty(door.endpoint, host, f"{door.endpoint} takes no more per second")
            return None
        self._connections[connection] = None
        self._per_ip[host] += 1
        return wait_s

    def _is_kept_open(self, connection: KafkaConnection, door: Door) -> bool:
        """Whether only the node's settings limit the connection, and no broker config. True for this machine,
        for other nodes' machines and, as in Apache Kafka, for the nodes' own listener if it is not the only
        one."""
        peer = connection.peer
        if door.takes_nodes and len(self._servers) > 1:
            return True
        return is_of_this_machine(peer.peer_host, peer.listener_host) or self._is_of_a_node(peer.peer_host)

    def _wait_for_turn(self, door: Door, rate: int | None, *, is_kept_open: bool) -> float:
        """Connections beyond the listener's rate are held back, as if they had been accepted later."""
        if rate is None:
            return 0.0
        bucket = ("listener", door.endpoint, "kept open" if is_kept_open else "")
        return self._accepted.spend(bucket, rate, 1.0, self.loop.time())

    def forget(self, connection: KafkaConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            host = connection.peer.peer_host
            self._per_ip[host] -= 1
            if not self._per_ip[host]:
                del self._per_ip[host]
        self._held_back.pop(connection, None)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def end_sessions(self) -> None:
        """Close the connections whose login is good no more: those of nodes that were removed, and of clients
        of nodes that were started again, and of those that need a proof since an upgrade was finalized."""
        for connection in list(self._connections):
            session = connection.peer.session
            if session is not None and session.has_ended:
                log.info("closing the connection of %s: its login is no longer valid", session.principal)
                connection.abort()

    def _sweep(self) -> None:
        """Close connections that have been silent for long with nothing under way."""
        now = self.loop.time()
        oldest = now - IDLE_SECONDS_MAX
        for connection in list(self._connections):
            if connection.last_active < oldest and connection.is_idle:
                connection.close()
            elif connection.is_stranger and now - connection.opened > LOGIN_SECONDS_MAX:
                connection.abort()
        if self._tls is not None:
            self._tls.reload()
        self.stalled.shed()
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    # --- backpressure ------------------------------------------------------------------------------

    @property
    def pressed(self) -> bool:
        return any(pressure.full for pressure in self.pressures)

    def when_relieved(self, connection: KafkaConnection) -> None:
        self.stats.held_back += 1
        if not self._held_back:
            self._held_back_since = self.loop.time()
            for pressure in self.pressures:
                if pressure.full:
                    pressure.when_room(self._relieved)
        self._held_back[connection] = None

    def _relieved(self) -> None:
        held, self._held_back = self._held_back, {}
        if held:
            self.stats.held_back_seconds += self.loop.time() - self._held_back_since
        for connection in held:
            connection.update_reading()

    # --- stopping ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Accept nothing new, answer what is under way, close."""
        self._is_open = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            if connection.is_idle:
                connection.close()
            else:
                connection.close_when_answered = True
        self._emptied = asyncio.Event()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS_MAX):
                    await self._emptied.wait()
        for connection in list(self._connections):
            connection.abort()
        await self._logins.close()
