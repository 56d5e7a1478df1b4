"""Hashes passwords and checks tokens in a thread of its own, one at a time: no other work that was put into
threads keeps logins waiting. Addresses take turns, so that none keeps others waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from chronik.server.login_failures import Crowded

__all__ = ["HashQueue"]

T = TypeVar("T")

AT_ONCE: Final = 1
WAITING_MAX: Final = 512
WAITING_PER_HOST_MAX: Final = 128
"""Many clients may share an address. They wait behind each other, not before those of other addresses."""


class HashQueue:
    def __init__(self, check: Callable[[str, str | None], None]) -> None:
        """`check` is given an address, and the user if it is known, when its turn has come, and raises if it
        may not be served any more."""
        self._check = check
        self._turns: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiters by address, in the order of the addresses' turns."""
        self._waiting = 0
        self._running = 0
        self._is_closed = False
        self._thread = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="logins")

    def close(self) -> None:
        """What runs ends by itself; what waits or comes is refused."""
        self._is_closed = True
        self._thread.shutdown(wait=False)

    async def run(
        self, host: str, function: Callable[..., T], *arguments: object, user: str | None = None
    ) -> T:
        """Call something slow in a thread when it is this address's turn; Crowded if too many wait."""
        turns = self._turns.get(host, ())
        if self._waiting >= WAITING_MAX or len(turns) >= WAITING_PER_HOST_MAX:
            raise Crowded("too many logins at once, try again later")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(host, deque()).append(turn)
        self._waiting += 1
        self._call_next()
        try:
            await turn
            self._check(host, user)
            if self._is_closed:
                raise Crowded("the node stops")
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        finally:
            if turn.done() and not turn.cancelled():
                self._running -= 1
                self._call_next()

    def _call_next(self) -> None:
        while self._running < AT_ONCE and self._turns:
            host, turns = self._turns.popitem(last=False)
            turn = turns.popleft()
            self._waiting -= 1
            if turns:
                self._turns[host] = turns
            if not turn.done():
                self._running += 1
                turn.set_result(None)
