"""A request that was read, on its way to its handler, and where its answer goes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from chronik.model import PeerError
from chronik.records.batch import Buffer

if TYPE_CHECKING:
    from chronik.server.dispatch import Dispatcher, Handler, RequestContext
    from chronik.server.known_requests import Known

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT")


class Responder(Protocol):
    """Where a request's answer goes: its place in the line of its connection's responses."""

    def respond(self, buffers: list[Buffer] | None) -> None:
        """The buffers of a whole response frame; None if the request gets no answer."""

    def close(self) -> None:
        """Close the connection instead."""

    def worked(self, seconds: float) -> None:
        """Adds `seconds` to the time for which the request kept the event loop busy."""


class AnyCall(Protocol):
    """A call, whatever the type of its request."""

    def start(self, dispatcher: Dispatcher) -> None:
        """Begin to answer; never waits. PeerError when the connection is to be closed."""

    def answer(self, dispatcher: Dispatcher) -> Awaitable[bytes | None]:
        """The whole response frame, or None if the request gets no answer; not for hot handlers."""


class Call(NamedTuple, Generic[RequestT]):
    """A request that was read."""

    handler: Handler[RequestT]
    context: RequestContext
    correlation_id: int
    request: RequestT
    responder: Responder
    known: Known | None = None
    """What is kept for requests that begin like this one."""

    def start(self, dispatcher: Dispatcher) -> None:
        hot = self.handler.hot if self.known is None else self.known.start
        if hot is None:
            dispatcher.spawn_answer(self)
            return
        try:
            hot(self)
        except PeerError:
            raise
        except Exception as error:
            self.failed(error)

    def answer(self, dispatcher: Dispatcher) -> Awaitable[bytes | None]:
        return dispatcher.answer(self)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on in a task. If that fails, the connection is closed."""
        self.context.services.spawn(answered_or_closed(work, self.responder))

    def failed(self, error: Exception) -> None:
        """A bug kept the request from being answered: the log has it, and the connection is closed."""
        log.error("%s v%d failed", self.context.api_key.name, self.context.api_version, exc_info=error)
        self.responder.close()


async def answered_or_closed(work: Coroutine[Any, Any, None], responder: Responder) -> None:
    """Do the work; if it fails, the connection is closed: other answers must not wait for this one."""
    try:
        await work
    except BaseException:
        responder.close()
        raise
