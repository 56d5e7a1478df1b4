"""From a request to its handler and back: versions, deadlines, and the one table of errors.

A handler is declared where it is written, `@handles(ApiKey.HEARTBEAT, versions=(0, 4))`, and listed in
`handlers`; nothing registers itself on import. It gets the decoded request and a context, and returns the
fields of the response; version differences in layout are the codec's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from chronik.model import ErrorCode, PeerError, RequestError, StorageError, Unavailable, invariant, violated
from chronik.records.batch import Buffer
from chronik.server.services import Services
from chronik.wire.api import ApiKey, RequestHeader
from chronik.wire.schema import (
    check_fields,
    decode_request,
    encode_response,
    response_has_field,
    schema_versions,
)

__all__ = [
    "Connection",
    "Dispatcher",
    "Handler",
    "HotCall",
    "Repeat",
    "Reply",
    "RequestContext",
    "Responder",
    "error_of",
    "handles",
    "handles_hot",
    "reply",
]

log = logging.getLogger(__name__)

Reply: TypeAlias = Mapping[str, Any]
HandlerFunction: TypeAlias = Callable[[Any, "RequestContext"], Awaitable[Any]]
OnError: TypeAlias = Callable[[Any, ErrorCode, str | None], Reply]
"""Builds the reply that tells a whole request's failure, for responses without a top-level error code."""


class Responder(Protocol):
    """Where a request's answer goes: its place in the line of its connection's responses."""

    def respond(self, buffers: list[Buffer] | None) -> None:
        """The buffers of a whole response frame; None if the request gets no answer."""

    def close(self) -> None:
        """Close the connection instead."""


class HotCall(NamedTuple):
    """A request of the hot path: bytes in, `responder` called whenever the answer is there."""

    context: RequestContext
    buffer: memoryview
    offset: int
    responder: Responder


class Repeat(Protocol):
    """Answers requests that begin like one before them, without reading again what they have in common."""

    def start(self, frame: memoryview, responder: Responder) -> bool:
        """Begin to answer; False if the request is not of this kind: then nothing has been done."""
        ...


HotFunction: TypeAlias = Callable[[HotCall], Repeat | None]
"""May return what answers the connection's next requests if they begin alike."""

DEADLINE_S: Final = 40.0
"""Longer than clients wait by default (30 s), so that their own time-out is normally the first to pass."""


def reply(**fields: Any) -> Reply:
    """The fields of a response: snake_case names of the schema, nested mappings and sequences."""
    return fields


@dataclass(frozen=True, slots=True)
class Connection:
    """What is known about the other side."""

    peer_host: str
    listener_host: str
    listener_port: int
    principal: str | None = None


class RequestContext(NamedTuple):
    header: RequestHeader
    connection: Connection
    services: Services
    api_ranges: Mapping[ApiKey, tuple[int, int]]
    """What this node offers, for ApiVersions."""

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def client_id(self) -> str | None:
        return self.header.client_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    api_key: ApiKey
    versions: tuple[int, int]
    function: HandlerFunction
    advertised_from: int
    on_error: OnError | None
    unavailable: ErrorCode
    deadline_s: float | None
    in_turn: bool = False
    """Starts when all earlier requests of its connection are answered and the client has read what it got, so
    that its answer is not old news, and large answers do not pile up."""
    hot: HotFunction | None = None
    """Set for Produce and Fetch: runs at once, without a task, and answers through its responder."""

    def __call__(self, request: Any, ctx: RequestContext) -> Awaitable[Any]:
        return self.function(request, ctx)


def handles(
    api_key: ApiKey,
    *,
    versions: tuple[int, int],
    on_error: OnError | None = None,
    unavailable: ErrorCode = ErrorCode.not_controller,
    deadline_s: float | None = DEADLINE_S,
    advertised_from: int | None = None,
    in_turn: bool = False,
) -> Callable[[HandlerFunction], Handler]:
    """Declare the handler of an API and the versions it understands, both ends included.

    `unavailable` is what a client is told when the handler raises Unavailable: an error that this API's
    clients answer with a retry. A handler that returns None sends nothing.
    `deadline_s=None` is for handlers that wait as long as their request says.
    """

    def declare(function: HandlerFunction) -> Handler:
        return Handler(
            api_key=api_key,
            versions=versions,
            function=function,
            advertised_from=versions[0] if advertised_from is None else advertised_from,
            on_error=on_error,
            unavailable=unavailable,
            deadline_s=deadline_s,
            in_turn=in_turn,
        )

    return declare


def handles_hot(
    api_key: ApiKey, *, versions: tuple[int, int], advertised_from: int | None = None, in_turn: bool = False
) -> Callable[[HotFunction], Handler]:
    """Declare a handler of the hot path, which has its own codec and needs no task."""

    def declare(function: HotFunction) -> Handler:
        return Handler(
            api_key=api_key,
            versions=versions,
            function=_not_awaited,
            advertised_from=versions[0] if advertised_from is None else advertised_from,
            on_error=None,
            unavailable=ErrorCode.not_leader_or_follower,
            deadline_s=None,
            in_turn=in_turn,
            hot=function,
        )

    return declare


async def _not_awaited(_request: Any, _ctx: RequestContext) -> Any:
    violated("a hot handler is started, not awaited")


def error_of(error: Exception, unavailable: ErrorCode) -> tuple[ErrorCode, str | None]:
    """The table of errors: what a client is told about an exception."""
    match error:
        case RequestError():
            return error.code, error.message
        case Unavailable():
            return unavailable, str(error)
        case StorageError():
            return ErrorCode.kafka_storage_error, str(error)
        case TimeoutError():
            return ErrorCode.request_timed_out, "The request was not finished in time."
        case _:
            # What went wrong inside is nobody else's business; the log has it.
            return ErrorCode.unknown_server_error, None


class Dispatcher:
    def __init__(self, handlers: Iterable[Handler], services: Services, *, strict: bool = False) -> None:
        """`strict` looks for fields in replies that no version has; for tests, since it loads all schemas."""
        self._handlers: dict[ApiKey, Handler] = {}
        self._services = services
        self._strict = strict
        self._tasks: dict[asyncio.Task[None], None] = {}
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
            key: (handler.advertised_from, handler.versions[1])
            for key, handler in sorted(self._handlers.items())
        }

    def start(
        self,
        header: RequestHeader,
        buffer: memoryview,
        offset: int,
        connection: Connection,
        responder: Responder,
    ) -> Repeat | None:
        """Begin to answer one request; never waits. Raises PeerError when the connection is to be closed.

        Returns what can answer the connection's next requests if they begin like this one.
        """
        handler = self._handlers.get(header.api_key)
        if handler is None or handler.hot is None:
            work = self._answer(header, buffer, offset, connection, responder)
            task = asyncio.get_running_loop().create_task(work)
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
            return None
        low, high = handler.versions
        if not low <= header.api_version <= high:
            raise PeerError(f"{header.api_key.name} version {header.api_version} is not offered")
        context = RequestContext(header, connection, self._services, self.api_ranges)
        try:
            return handler.hot(HotCall(context, buffer, offset, responder))
        except (PeerError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s v%d failed", header.api_key.name, header.api_version)
            responder.close()
            return None

    async def _answer(
        self,
        header: RequestHeader,
        buffer: memoryview,
        offset: int,
        connection: Connection,
        responder: Responder,
    ) -> None:
        try:
            frame = await self.dispatch(header, buffer, offset, connection)
        except PeerError as error:
            log.info("closing the connection of %s: %s", connection.peer_host, error)
            responder.close()
        except asyncio.CancelledError:
            responder.close()
            raise
        else:
            responder.respond(None if frame is None else [frame])

    async def close(self) -> None:
        """End what is still under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def dispatch(
        self, header: RequestHeader, buffer: bytes | memoryview, offset: int, connection: Connection
    ) -> bytes | None:
        """Answer one request: the whole response frame, or None if it gets no answer.

        Raises PeerError when the connection is to be closed: malformed bytes, an API or a version that was
        not offered. Everything else that goes wrong becomes a response.
        """
        handler = self._handlers.get(header.api_key)
        version = header.api_version
        if handler is None or not handler.versions[0] <= version <= handler.versions[1]:
            if handler is not None and header.api_key == ApiKey.API_VERSIONS:
                return self._unsupported_api_versions(header)
            raise PeerError(f"{header.api_key.name} version {version} is not offered")
        ctx = RequestContext(header, connection, self._services, self.api_ranges)
        request = decode_request(header.api_key, version, buffer, offset)
        try:
            async with asyncio.timeout(handler.deadline_s):
                fields = await handler.function(request, ctx)
            return None if fields is None else self._encode(header, fields)
        except PeerError:
            raise
        except Exception as error:
            return self._failed(handler, header, request, error)

    def _encode(self, header: RequestHeader, fields: Reply) -> bytes:
        if self._strict:
            check_fields(header.api_key, "response", fields)
        return encode_response(header.api_key, header.api_version, header.correlation_id, fields)

    def _failed(self, handler: Handler, header: RequestHeader, request: Any, error: Exception) -> bytes:
        code, message = error_of(error, handler.unavailable)
        if code == ErrorCode.unknown_server_error:
            log.error("%s v%d failed", header.api_key.name, header.api_version, exc_info=error)
        if handler.on_error is not None:
            return self._encode(header, handler.on_error(request, code, message))
        if response_has_field(header.api_key, header.api_version, "error_code"):
            fields: dict[str, Any] = {"error_code": code}
            if response_has_field(header.api_key, header.api_version, "error_message"):
                fields["error_message"] = message
            return self._encode(header, fields)
        raise PeerError(f"{header.api_key.name} failed and its response cannot say so") from error

    def _unsupported_api_versions(self, header: RequestHeader) -> bytes:
        """The answer that any client can read, whatever version it asked with (KIP-511)."""
        ranges = [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in self.api_ranges.items()
        ]
        fields = {"error_code": ErrorCode.unsupported_version, "api_keys": ranges}
        return encode_response(ApiKey.API_VERSIONS, 0, header.correlation_id, fields)
