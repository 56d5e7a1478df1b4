"""From a request to its handler and back: versions, deadlines, and the one table of errors.

Every request goes the same way: it is read (`Dispatcher.read`), it is started (`Dispatcher.start`), it
answers through its responder. A request that begins like an earlier one of its connection is not read again
but put together from what is known (`Connection.known`); from `start` on nobody can tell the difference.
Rights are therefore checked after `start`, where `Access` is asked for each request; its decisions are not
kept with a known request.

Whatever fails on the way, the request is answered or its connection is closed: later answers wait for it.

A handler is declared where it is written, `@handles(ApiKey.HEARTBEAT, versions=(0, 4))`, and listed in
`handlers`; nothing registers itself on import. It gets the decoded request and a context, and returns the
fields of the response; version differences in layout are the codec's business.

The request is kio's class of the newest version, whatever version the client sent: fields that the client's
version lacks have the defaults of Kafka's schema, as in Kafka's own request classes. A handler names that
class as the type of its request. It imports the class for type checkers only: importing all of them takes a
quarter of a second, so the decoder loads each with the first request that needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from chronik.log_lines import RepeatingLine
from chronik.model import ErrorCode, PeerError, invariant, violated
from chronik.replication.writers import Writer
from chronik.security.principals import ANONYMOUS
from chronik.server.access import EVERYTHING, NODE_PREFIX, Access
from chronik.server.call import Call, Responder
from chronik.server.changes import CHANGES, changed_by, may_have_changed, names_in
from chronik.server.errors import error_of
from chronik.server.gate import Needs, Request, pass_gate
from chronik.server.known_requests import KnownRequests
from chronik.server.produce_queue import ProduceQueue
from chronik.server.sasl import Session
from chronik.server.services import Services
from chronik.server.throttling import metered
from chronik.tasks import Tasks
from chronik.wire.api import ApiKey, RequestHeader
from chronik.wire.schema import (
    check_fields,
    decode_request,
    encode_response,
    response_has_field,
    schema_versions,
)

__all__ = [
    "Call",
    "Connection",
    "Dispatcher",
    "Handler",
    "Reply",
    "RequestContext",
    "Responder",
    "handles",
    "handles_hot",
    "reply",
]

log = logging.getLogger(__name__)
_closing: Final = RepeatingLine(log, logging.INFO, "closing the connection of %s: %s")

Reply: TypeAlias = Mapping[str, Any]
RequestT = TypeVar("RequestT")
"""kio's class of the request, or a union of them where one class does not have all versions' fields."""
NotedT = TypeVar("NotedT", bound=Request)
HandlerFunction: TypeAlias = Callable[[RequestT, "RequestContext"], Awaitable[Reply | None]]
OnError: TypeAlias = Callable[[RequestT, ErrorCode, str | None], Reply]
"""Builds the reply that tells a whole request's failure, for responses without a top-level error code."""


HotFunction: TypeAlias = Callable[["Call[RequestT]"], None]
ReadFunction: TypeAlias = Callable[[memoryview, int, "RequestContext"], RequestT]
"""Decodes a request's body, which starts at the offset, and names what it is about."""

DEADLINE_S: Final = 40.0
"""Longer than clients wait by default (30 s), so that their own time-out is normally the first to pass."""


def reply(**fields: Any) -> Reply:
    """The fields of a response: snake_case names of the schema, nested mappings and sequences."""
    return fields


@dataclass(slots=True, eq=False)
class Connection:
    """What is known about the other side. Only a login and ApiVersions change it. Two are never the same."""

    peer_host: str
    listener_host: str
    listener_port: int
    access: Access = EVERYTHING
    """What the client may do."""
    endpoint: str = "kafka"
    """Name under which brokers register the listener that the client came by."""
    session: Session | None = None
    """Its login; None where nobody could log in."""
    peer_port: int = 0
    software: tuple[str, str] = ("unknown", "unknown")
    """Name and version of the client's library, as its ApiVersions said (KIP-511)."""
    pushes_until_ms: int = 0
    """Until when its pushes of metrics are accounted for."""
    produce_queue: ProduceQueue = field(default_factory=ProduceQueue)
    known: KnownRequests = field(default_factory=KnownRequests, init=False)
    """Known requests of this connection. They refer back to this object: `connection_lost` drops them."""

    _writer: Writer | None = field(default=None, init=False)

    def writer(self, client_id: str | None) -> Writer:
        """What partitions note of who wrote to them: the same object as long as the client keeps its id."""
        if self._writer is None or not self._writer.is_named(client_id):
            self._writer = Writer.named(client_id, self.peer_host, self.peer_port)
        return self._writer

    @property
    def principal(self) -> str:
        return self.access.principal if self.session is None else self.session.principal


class RequestContext(NamedTuple):
    """What a handler may know besides the request. Nothing of it belongs to one request alone."""

    api_key: ApiKey
    api_version: int
    client_id: str | None
    connection: Connection
    services: Services
    api_ranges: Mapping[ApiKey, tuple[int, int]]
    """What this node offers, for ApiVersions."""

    @property
    def access(self) -> Access:
        return self.connection.access


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler(Generic[RequestT]):
    api_key: ApiKey
    versions: tuple[int, int]
    decoded_as: tuple[int, ...]
    """Versions whose classes requests are decoded into, ascending: each into the first that is not older than
    the request, or into the last."""
    function: HandlerFunction[RequestT]
    needs: Needs
    """What a principal must be allowed for this API; the gate sees to it."""
    on_error: OnError[RequestT] | None
    unavailable: ErrorCode
    deadline_s: float | None
    in_turn: bool = False
    """Whether a request starts only after all earlier ones of its connection are answered and the client has
    read the responses. So its answer is not out of date, and large answers do not pile up."""
    hot: HotFunction[RequestT] | None = None
    """Set for Produce and Fetch: runs at once, without a task, and answers through its responder."""
    reads: ReadFunction[RequestT] | None = None
    """The codec of a hot handler."""

    def __call__(self, request: RequestT, ctx: RequestContext) -> Awaitable[Reply | None]:
        return self.function(request, ctx)

    def decode(self, version: int, buffer: bytes | memoryview, offset: int) -> RequestT:
        """The request in the class that the handler expects; PeerError if the bytes make no sense."""
        request: RequestT = decode_request(
            self.api_key, version, buffer, offset, decoded_as=self.class_version(version)
        )
        return request

    def class_version(self, version: int) -> int:
        """The version whose class a request of this version is decoded into."""
        return next((one for one in self.decoded_as if one >= version), self.decoded_as[-1])


def handles(
    api_key: ApiKey,
    *,
    versions: tuple[int, int],
    needs: Needs,
    decoded_as: tuple[int, ...] | None = None,
    on_error: OnError[RequestT] | None = None,
    unavailable: ErrorCode = ErrorCode.not_controller,
    deadline_s: float | None = DEADLINE_S,
    in_turn: bool = False,
) -> Callable[[HandlerFunction[RequestT]], Handler[RequestT]]:
    """Declare the handler of an API and the versions it understands, both ends included.

    Requests are decoded into the class of the newest version; `decoded_as` names the versions to use where
    that one has not all fields of older requests. The handler's function takes the union of their classes.

    `unavailable` is the error code when the handler raises Unavailable: an error that this API's
    clients answer with a retry. A handler that returns None sends nothing.
    `deadline_s=None` is for handlers that wait as long as their request says.
    """

    def declare(function: HandlerFunction[RequestT]) -> Handler[RequestT]:
        return Handler(
            api_key=api_key,
            versions=versions,
            decoded_as=(versions[1],) if decoded_as is None else decoded_as,
            function=function,
            needs=needs,
            on_error=on_error,
            unavailable=unavailable,
            deadline_s=deadline_s,
            in_turn=in_turn,
        )

    return declare


def handles_hot(
    api_key: ApiKey,
    *,
    versions: tuple[int, int],
    needs: Needs,
    reads: ReadFunction[RequestT],
    in_turn: bool = False,
) -> Callable[[HotFunction[RequestT]], Handler[RequestT]]:
    """Declare a handler of the hot path, which has its own codec and needs no task."""

    def declare(function: HotFunction[RequestT]) -> Handler[RequestT]:
        return Handler(
            api_key=api_key,
            versions=versions,
            decoded_as=(versions[1],),
            function=_not_awaited,
            needs=needs,
            on_error=None,
            unavailable=ErrorCode.not_leader_or_follower,
            deadline_s=None,
            in_turn=in_turn,
            hot=function,
            reads=reads,
        )

    return declare


@dataclass(frozen=True, slots=True)
class _Unread:
    """Stands for a request whose version is not known, so that its bytes cannot be read."""


async def _unsupported_api_versions(_request: object, ctx: RequestContext) -> Reply | None:
    ranges = [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in ctx.api_ranges.items()
    ]
    return reply(error_code=ErrorCode.unsupported_version, api_keys=ranges)


async def _not_awaited(_request: object, _ctx: RequestContext) -> Reply | None:
    violated("a hot handler is started, not awaited")


class Dispatcher:
    def __init__(self, handlers: Iterable[Handler[Any]], services: Services, *, strict: bool = False) -> None:
        """`strict` looks for fields in replies that no version has; for tests, since it loads all schemas."""
        self._handlers: dict[ApiKey, Handler[Any]] = {}
        self._services = services
        self.metadata = services.metadata
        """Its `applied_index` is the generation of what is known of requests."""
        self.quotas = services.quotas
        self._strict = strict
        self._tasks = Tasks("dispatcher")
        for handler in handlers:
            invariant(handler.api_key not in self._handlers, f"two handlers for {handler.api_key.name}")
            if handler.hot is None:
                low, high = schema_versions(handler.api_key)
                invariant(
                    low <= handler.versions[0] <= handler.versions[1] <= high,
                    f"{handler.api_key.name} has schemas for {low} to {high} only",
                )
            self._handlers[handler.api_key] = handler
        self.in_turn = frozenset(key for key, handler in self._handlers.items() if handler.in_turn)
        self.api_ranges: Mapping[ApiKey, tuple[int, int]] = {
            key: handler.versions for key, handler in sorted(self._handlers.items())
        }

    # --- reading -----------------------------------------------------------------------------------

    def read(
        self,
        header: RequestHeader,
        buffer: bytes | memoryview,
        offset: int,
        connection: Connection,
        responder: Responder,
    ) -> Call[Any]:
        """The decoded request. PeerError when the connection is to be closed: malformed bytes, an API or a
        version that was not offered."""
        api_key, version, correlation_id, client_id = header
        handler = self._handlers.get(api_key)
        context = RequestContext(api_key, version, client_id, connection, self._services, self.api_ranges)
        if handler is None or not handler.versions[0] <= version <= handler.versions[1]:
            if handler is not None and header.api_key == ApiKey.API_VERSIONS:
                # An answer in version 0 is one that any client can read (KIP-511).
                unsupported = replace(handler, function=_unsupported_api_versions)
                context = context._replace(api_version=0)
                return Call(unsupported, context, correlation_id, _Unread(), responder)
            raise PeerError(f"{header.api_key.name} version {version} is not offered")
        try:
            if handler.reads is None:
                request = handler.decode(version, buffer, offset)
            else:
                request = handler.reads(memoryview(buffer), offset, context)
        except PeerError:
            raise
        except Exception as error:
            log.exception("%s v%d could not be read", header.api_key.name, version)
            raise PeerError(f"{header.api_key.name} version {version} cannot be read") from error
        known = None
        if api_key is ApiKey.PRODUCE:
            known = connection.known.remember(
                memoryview(buffer), handler, context, request, self.metadata.applied_index
            )
        return Call(handler, context, correlation_id, request, responder, known)

    # --- answering ---------------------------------------------------------------------------------

    def start(self, call: Call[Any]) -> None:
        """Begin to answer; never waits. PeerError when the connection is to be closed."""
        hot = call.handler.hot if call.known is None else call.known.start
        if hot is None:
            answer = self._answer(call)
            if self.quotas.measures_work:
                answer = metered(answer, call.responder.worked)
            self._tasks.spawn(answer, "an answer")
            return
        try:
            hot(call)
        except PeerError:
            raise
        except Exception as error:
            call.failed(error)

    async def _answer(self, call: Call[Any]) -> None:
        responder = call.responder
        try:
            frame = await self.answer(call)
        except PeerError as error:
            host = call.context.connection.peer_host
            _closing(host, host, error)
            responder.close()
        except Exception as error:
            call.failed(error)
        except BaseException:
            responder.close()
            raise
        else:
            responder.respond(None if frame is None else [frame])

    async def close(self) -> None:
        """End what is still under way."""
        await self._tasks.close()

    async def answer(self, call: Call[Request]) -> bytes | None:
        """The whole response frame, or None if the request gets no answer.

        Whatever the handler fails with becomes a response. Raises only if not even an error response can be
        built.
        """
        handler, context = call.handler, call.context
        is_noted = handler.api_key in CHANGES and self._services.audit.with_changes
        function = partial(self._noted, handler) if is_noted else handler.function
        try:
            async with asyncio.timeout(handler.deadline_s):
                if context.access.is_open:
                    fields = await function(call.request, context)
                else:
                    fields = await pass_gate(handler, function, call.request, context)
            return None if fields is None else self._encode(call, fields)
        except PeerError:
            raise
        except Exception as error:
            return self._failed(call, error)

    async def _noted(
        self, handler: Handler[NotedT], request: NotedT, context: RequestContext
    ) -> Reply | None:
        """The handler's answer to the allowed part of a request; what it changed goes to the audit log."""
        try:
            fields = await handler.function(request, context)
        except BaseException as error:
            if may_have_changed(error):
                self._note_change(context, names_in(request))
            raise
        changed = None if fields is None else changed_by(handler.api_key, request, fields)
        if changed is not None:
            self._note_change(context, changed)
        return fields

    def _note_change(self, context: RequestContext, resource: str) -> None:
        connection = context.connection
        who = connection.principal
        may_be_node = who == ANONYMOUS or who.startswith(NODE_PREFIX)
        if context.api_key is ApiKey.WRITE_TXN_MARKERS and may_be_node:
            return  # nodes send these for each transaction
        action = context.api_key.name.lower()
        self._services.audit.changed(who, connection.peer_host, "kafka", action, resource)

    def _encode(self, call: Call[Any], fields: Reply) -> bytes:
        api_key, version = call.context.api_key, call.context.api_version
        if self._strict:
            check_fields(api_key, "response", fields)
        return encode_response(api_key, version, call.correlation_id, fields)

    def _failed(self, call: Call[Any], error: Exception) -> bytes:
        handler, api_key, version = call.handler, call.context.api_key, call.context.api_version
        code, message = error_of(error, handler.unavailable)
        if code == ErrorCode.unknown_server_error:
            log.error("%s v%d failed", api_key.name, version, exc_info=error)
        if handler.on_error is not None:
            return self._encode(call, handler.on_error(call.request, code, message))
        if response_has_field(api_key, version, "error_code"):
            fields: dict[str, Any] = {"error_code": code}
            if response_has_field(api_key, version, "error_message"):
                fields["error_message"] = message
            return self._encode(call, fields)
        raise PeerError(f"{api_key.name} failed and its response cannot say so") from error
