"""The order in which a connection's produce requests are appended: the order in which they came.

Nearly all of them are appended at once, in the turn of the loop that reads them. One that has to wait first
(its topic is being created, its transaction's coordinator is asked) takes a place in the queue, and so does
every request that comes while somebody is in it. The place is taken in the turn that reads the request: were
it taken later, a request read in the same turn would be appended first, and an idempotent producer would
hear of a gap in its sequence (OUT_OF_ORDER_SEQUENCE_NUMBER).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager


class ProduceQueue:
    """One per connection. Its length is bounded by the requests that a connection may have under way."""

    __slots__ = ("_last", "is_busy")

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None
        self.is_busy = False
        """Requests wait here: a later one must not overtake them."""

    def take_place(self) -> AbstractAsyncContextManager[None]:
        """Join the end of the queue now. Entering the context waits for those in front; leaving it lets the
        next one go."""
        before, own = self._last, asyncio.get_running_loop().create_future()
        self._last = own
        self.is_busy = True
        return _Place(self, before, own)

    def _left(self, place: asyncio.Future[None]) -> None:
        if self._last is place:
            self._last = None
            self.is_busy = False


class _Place(AbstractAsyncContextManager[None]):
    __slots__ = ("_before", "_own", "_queue")

    def __init__(
        self, queue: ProduceQueue, before: asyncio.Future[None] | None, own: asyncio.Future[None]
    ) -> None:
        self._queue = queue
        self._before = before
        self._own = own

    async def __aenter__(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            try:
                await asyncio.wait((before,))
            except BaseException:
                self._leave()
                raise

    async def __aexit__(self, *exc_info: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._own.set_result(None)
        self._queue._left(self._own)
