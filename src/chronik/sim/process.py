"""A process of the simulated world: a node or a client, with everything that dies with it."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from chronik.sim.loop import SimHandle
    from chronik.sim.transport import SimServer, SimTransport


class Crashed(BaseException):
    """Raised into code of a process that just died, to get out of it; nobody may handle it."""


_PRUNE_AT: Final = 64


class Process:
    """Code knows its process by `CURRENT`, which is set in the process's `context`."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.may_run = True
        """Alive and not paused."""
        self.clock_rate = 1.0
        """Rate of this process's clock. It drifts unless this is 1.0."""
        self._clock_base = 0.0
        self.is_skewed = False
        """Whether its clock differs from the world's time."""
        self.ready: deque[SimHandle] = deque()
        self.on_turn: Callable[[], None] | None = None
        """Called after each of its turns: invariants look here."""
        self.is_queued = False
        """Whether the loop has it on its list of processes with something to do."""
        self.transports: dict[SimTransport, None] = {}
        self.servers: dict[SimServer, None] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self._prune_at = _PRUNE_AT
        self.task_count = 0
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)

    def local_time(self, now: float) -> float:
        return self._clock_base + now * self.clock_rate

    def global_time(self, when: float) -> float:
        return (when - self._clock_base) / self.clock_rate

    def drift(self, now: float, rate: float) -> None:
        """Let the clock run at another rate from now on; it does not jump."""
        local = self.local_time(now)
        self.clock_rate = rate
        self._clock_base = local - now * rate
        self.is_skewed = rate != 1.0 or self._clock_base != 0.0

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a task. Tasks that a crash leaves behind must not be collected while the world
        runs."""
        self.tasks.append(task)
        if len(self.tasks) >= self._prune_at:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._prune_at = max(_PRUNE_AT, 2 * len(self.tasks))

    def live_tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.tasks if not task.done()]

    def __repr__(self) -> str:
        return f"<{self.name}>"


CURRENT: Final[contextvars.ContextVar[Process]] = contextvars.ContextVar("chronik_sim_process")
