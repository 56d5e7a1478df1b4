"""Who waits for a partition's log to get somewhere: on disk, committed, or deleted up to an offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from chronik.model import RequestError

AckCallback: TypeAlias = Callable[[RequestError | None], None]


class AckWaiter(NamedTuple):
    next_offset: int
    callback: AckCallback


class AckWaiters(deque[AckWaiter]):
    """Waiters in offset order. A waiter is removed before its callback runs, so a callback may add others."""

    def serve(self, offset: int, error: RequestError | None = None) -> None:
        """Answer everybody who waits for `offset` or less."""
        while self and self[0].next_offset <= offset:
            self.popleft().callback(error)

    def fail_behind(self, offset: int, error: RequestError) -> None:
        """Refuse everybody who waits for more than `offset`."""
        failed = [waiter for waiter in self if waiter.next_offset > offset]
        kept = [waiter for waiter in self if waiter.next_offset <= offset]
        self.clear()
        self.extend(kept)
        for waiter in failed:
            waiter.callback(error)
