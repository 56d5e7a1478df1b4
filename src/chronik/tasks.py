"""The owner of background tasks: every part of a node that starts tasks keeps them in a `Tasks`.

Who hears of a failure: an error that the broker expects (`ChronikError`, `OSError`) is logged once, with what
the task was for. Anything else is a bug and goes to the loop's exception handler, which logs the stack and,
for a broken invariant, stops the node. Cancelling is not a failure.

Tasks are kept, cancelled and waited for in the order in which they were started, so that a simulated run is
the same each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from chronik.model import ChronikError

__all__ = ["Tasks", "in_slices"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """The tasks of one owner, which closes them when it stops."""

    __slots__ = ("_owner", "_purposes")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._purposes: dict[asyncio.Future[Any], str] = {}
        """What each task that is still running is for."""

    def __len__(self) -> int:
        return len(self._purposes)

    def spawn(self, work: Coroutine[Any, Any, T], purpose: str) -> asyncio.Task[T]:
        """Start a task. `purpose` is its name; the log says that it failed."""
        task = asyncio.get_running_loop().create_task(work, name=purpose)
        self.keep(task, purpose)
        return task

    def keep(self, future: asyncio.Future[Any], purpose: str) -> None:
        """Take over something that another part started and nobody else waits for."""
        self._purposes[future] = purpose
        future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Any]) -> None:
        purpose = self._purposes.pop(future, "a task that was ended")
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            return
        if isinstance(error, ChronikError | OSError):
            log.warning("%s: %s failed: %s", self._owner, purpose, error)
        else:
            future.get_loop().call_exception_handler(
                {"message": f"{self._owner}: {purpose} failed", "exception": error, "future": future}
            )

    def cancel(self) -> None:
        """End all of them without waiting."""
        for future in list(self._purposes):
            future.cancel()

    def cancel_oldest(self) -> None:
        """End the one that was started first, and do not count it any more."""
        oldest = next(iter(self._purposes))
        del self._purposes[oldest]
        oldest.cancel()

    async def close(self) -> None:
        """End all of them and wait until they have ended."""
        self.cancel()
        await self.finished()

    async def finished(self) -> None:
        """Wait until those that run now have ended by themselves."""
        await asyncio.gather(*self._purposes, return_exceptions=True)


async def in_slices(steps: Generator[None, None, T], steps_a_turn: int) -> T:
    """Work that would block the event loop for long, a number of its steps in each turn of the loop."""
    while True:
        for _ in range(steps_a_turn):
            try:
                next(steps)
            except StopIteration as finished:
                result: T = finished.value
                return result
        await asyncio.sleep(0)
