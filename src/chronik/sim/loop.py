"""An asyncio event loop with virtual time, on which several processes run beside each other.

Each process has its own queue of callbacks and runs it in order, as a real loop does; which process gets the
next turn, and which of two timers due at the same moment comes first, is the seed's choice. Time moves a
little with every callback and jumps to the next timer when nobody has anything to do.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import traceback
from asyncio import events
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from chronik.sim.process import CURRENT, Crashed, Process
from chronik.sim.trace import Trace

if TYPE_CHECKING:
    from chronik.sim.network import SimNetwork

T = TypeVar("T")

CALLBACK_SECONDS: Final = 2e-6
"""Virtual time that a callback takes, so that a process that spins forever moves the clock and is noticed."""


EPOCH_MS: Final = 1_700_000_000_000
"""Wall-clock time at which every world begins."""


class SimHandle(asyncio.TimerHandle):
    """A callback that waits. Built by hand: asyncio's own constructor does much that nobody needs here."""

    __slots__ = ("process",)

    def __init__(
        self,
        process: Process,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        loop: SimLoop,
    ) -> None:
        self.process = process
        self._when = when
        self._callback: Callable[..., object] | None = callback
        self._args: Any = args
        self._context = context
        self._cancelled = False
        self._loop = loop

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = None

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when

    def __repr__(self) -> str:
        return f"<SimHandle of {self.process.name} at {self._when:.6f}>"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Unhandled(Exception):
    """An error reached the loop; it is among the loop's failures."""


_Event: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]
"""Something that happens between the processes, on a wire: nobody's turn, so it needs no place in a queue."""


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.now = 0.0
        """The world's own time, which no clock of a process tells."""
        self._timers: list[tuple[float, float, int, SimHandle | _Event]] = []
        self._timer_count = 0
        self._runnable: list[Process] = []
        self._running = False
        self._closed = False
        self.trace = Trace(lambda: self.now)
        self.network: SimNetwork
        self.world = Process("world", "world")
        """The process of the harness itself: it has no host and never crashes."""
        self.current = self.world
        self.steps = 0
        self.failures: list[str] = []
        """Errors that reached the loop out of living processes: each is a bug."""

    # --- running -----------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T], *, seconds_max: float, steps_max: int) -> T:
        """Run the world until `main`, a task of the harness, is done. TimeoutError when it takes too long."""
        previous = events._get_running_loop()
        events._set_running_loop(self)
        self._running = True
        try:
            task = self.create_task(main)
            while not task.done():
                self._turn()
                if self.failures:
                    raise Unhandled
                if self.now > seconds_max or self.steps > steps_max:
                    where = "\n".join(_stack(each) for each in self.world.live_tasks())
                    raise TimeoutError(
                        f"not over after {self.now:.1f} virtual seconds, {self.steps} steps\n{where}"
                    )
            return task.result()
        finally:
            self._running = False
            events._set_running_loop(previous)

    def _turn(self) -> None:
        """One process runs what is ready in it, as one iteration of a real loop does."""
        timers, runnable = self._timers, self._runnable
        while True:
            now = self.now
            while timers and timers[0][0] <= now:
                due = heapq.heappop(timers)[3]
                if isinstance(due, tuple):
                    due[0](*due[1])
                elif not due._cancelled:
                    self.run_soon(due)
            if runnable:
                break
            if not timers:
                raise TimeoutError("nothing will ever happen again: every task waits")
            self.now = timers[0][0]
        count = len(runnable)
        place = int(self._rng.random() * count) if count > 1 else 0
        process = runnable[place]
        self.current = process
        ready = process.ready
        for _ in range(len(ready)):
            if not process.may_run:
                break
            handle = ready.popleft()
            callback = handle._callback
            if callback is None:
                continue  # cancelled
            self.steps += 1
            self.now += CALLBACK_SECONDS
            try:
                handle._context.run(callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._failed(handle, error)
        self.current = self.world
        if not ready or not process.may_run:
            process.is_queued = False
            del runnable[place]  # others are only ever put behind it
        if process.on_turn is not None:
            process.on_turn()

    def _failed(self, handle: SimHandle, error: BaseException) -> None:
        if handle.process.alive:
            what = f"callback {handle._callback!r} failed"
            self.call_exception_handler({"message": what, "exception": error})

    # --- processes ---------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine as a task of a process."""
        return process.context.run(lambda: self.create_task(work, context=process.context.copy()))

    def kill(self, process: Process) -> None:
        """The process runs no further callback. Its connections and files are closed by their owners."""
        process.alive = process.may_run = False
        process.ready.clear()

    def pause(self, process: Process) -> None:
        process.may_run = False

    def resume(self, process: Process) -> None:
        process.may_run = process.alive
        if process.alive and process.ready and not process.is_queued:
            process.is_queued = True
            self._runnable.append(process)

    # --- asyncio: callbacks --------------------------------------------------------------------------

    def time(self) -> float:
        process = self.current
        return process.local_time(self.now) if process.is_skewed else self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        if context is None:
            process, context = self.current, contextvars.copy_context()
        else:
            process = context.get(CURRENT, self.world)
        handle = SimHandle(process, self.now, callback, args, context, self)
        if process.alive and not self._closed:
            process.ready.append(handle)
            if not process.is_queued and process.may_run:
                process.is_queued = True
                self._runnable.append(process)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        process = self.current
        now = process.local_time(self.now) if process.is_skewed else self.now
        return self.call_at(now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if context is None:
            process, context = self.current, contextvars.copy_context()
        else:
            process = context.get(CURRENT, self.world)
        handle = SimHandle(process, when, callback, args, context, self)
        self._add_timer(process.global_time(when) if process.is_skewed else when, handle)
        return handle

    def at(self, when: float, process: Process, callback: Callable[..., object], *args: Any) -> None:
        """For the world's own parts: call back in `process` at a moment of the world's time."""
        self._add_timer(when, SimHandle(process, when, callback, args, process.context, self))

    def happen(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """For the world's own parts: call back at a moment of the world's time, in no process."""
        if not self._closed:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._rng.random(), self._timer_count, (callback, args)))

    def soon(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        """For the world's own parts: call back in `process` on its next turn."""
        self.run_soon(SimHandle(process, self.now, callback, args, process.context, self))

    def run_soon(self, handle: SimHandle) -> None:
        """For the world's own parts: the same with a handle that may serve again once it was called."""
        process = handle.process
        if process.alive and not self._closed:
            process.ready.append(handle)
            if not process.is_queued and process.may_run:
                process.is_queued = True
                self._runnable.append(process)

    def _add_timer(self, when: float, handle: SimHandle) -> None:
        if handle.process.alive and not self._closed:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._rng.random(), self._timer_count, handle))

    # --- asyncio: futures, tasks, errors -------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        if self._closed:
            coro.close()
            raise RuntimeError("the world is over")
        process = self.current if context is None else context.get(CURRENT, self.world)
        process.task_count += 1
        label = f"{process.name}.{process.task_count}" if name is None else str(name)
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=label, context=context)
        process.keep(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Crashed) or not self.current.alive:
            return
        what = f"{self.current.name}: {context.get('message')}"
        if isinstance(error, BaseException):
            what += "\n" + "".join(traceback.format_exception(error))
        self.fail(what)

    def fail(self, what: str) -> None:
        if not self._closed:
            self.failures.append(what)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """The run is over. Calls of coroutines that are torn down now have no effect."""
        self._closed = True
        self._timers.clear()
        self._runnable.clear()

    # --- asyncio: network ----------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(self.current, protocol_factory, host, port or 0)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, ssl: Any = None, **_: Any
    ) -> Any:
        if ssl:
            raise NotImplementedError("the simulated network has no TLS")
        return await self.network.connect(self.current, protocol_factory, host, port)

    async def shutdown_asyncgens(self) -> None:
        pass


def _stack(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=4)
    places = [f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}" for frame in frames]
    return f"  {task.get_name()} waits at {' < '.join(places)}"
