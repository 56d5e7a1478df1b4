"""The simulated world of one seed: loop, network, hosts, and the nodes and clients that run on them."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from chronik.config import Settings
from chronik.metadata.commands import ChangePartition
from chronik.model import ChronikError, InvariantViolated, TopicPartition
from chronik.node import Node
from chronik.sim.disk import DiskView, SimDisk
from chronik.sim.loop import EPOCH_MS, SimLoop
from chronik.sim.network import SimNetwork
from chronik.sim.objects import SimObjects, SimObjectsView
from chronik.sim.process import CURRENT, Crashed, Process

T = TypeVar("T")


class World:
    def __init__(
        self,
        seed: int,
        *,
        keep_trace: bool = False,
        loop_type: Callable[[random.Random], SimLoop] = SimLoop,
    ) -> None:
        self.seed = seed
        self.loop = loop_type(self.rng("loop"))
        self.trace = self.loop.trace
        self.trace.is_kept = keep_trace
        chance = self.rng("network")
        self.network = SimNetwork(
            self.loop,
            chance,
            latency_s=chance.choice((0.0002, 0.0005, 0.002)),
            jitter_s=chance.choice((0.0001, 0.0005, 0.004)),
            fragment_probability=chance.choice((0.0, 0.02, 0.2)),
        )
        self.objects = SimObjects(self.rng("objects"))
        """One object store for all nodes whose settings name one."""
        self.complaints: list[str] = []
        """What nodes logged as errors."""
        self._dead: list[Process] = []
        self._living: list[Process] = []
        self.views: list[DiskView] = []
        """The disk views of all processes."""

    def rng(self, purpose: str) -> random.Random:
        """A random source for one purpose. Drawing more from it does not change the others."""
        return random.Random(f"{self.seed}/{purpose}")

    def process(self, name: str, host: str) -> Process:
        process = Process(name, host)
        self._living.append(process)
        return process

    def bury(self, process: Process, *, power_lost: bool = False) -> None:
        """Remove a process that was killed in the middle of its work."""
        self.network.process_died(process, power_lost=power_lost)
        self.loop.kill(process)
        self._living.remove(process)
        self._dead.append(process)

    def run(self, main: Coroutine[Any, Any, T], *, seconds_max: float, steps_max: int) -> T:
        """Run the world. Garbage is collected afterwards: it must not run anybody's code meanwhile."""
        handler = _LogToTrace(self)
        root = logging.getLogger("chronik")
        former = (root.handlers[:], root.level, root.propagate)
        root.handlers[:], root.propagate = [handler], False
        root.setLevel(logging.DEBUG if self.trace.is_kept else logging.ERROR)
        enabled = gc.isenabled()
        gc.disable()
        try:
            return self.loop.run(main, seconds_max=seconds_max, steps_max=steps_max)
        finally:
            root.handlers[:], root.propagate = former[0], former[2]
            root.setLevel(former[1])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # about coroutines that were cut short
                self._tear_down()
            if enabled:
                gc.enable()

    def _tear_down(self) -> None:
        self.loop.close()
        for process in (*self._dead, *self._living, self.loop.world):
            process.alive = False
            for task in process.live_tasks():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
            process.tasks.clear()
            process.ready.clear()
        self._dead.clear()
        self._living.clear()
        for view in self.views:
            view.let_go()
        self.views.clear()


def _close(coroutine: Any) -> None:
    """Unwind a coroutine that a crash left suspended. What its `finally` blocks do has no effect."""
    try:
        coroutine.close()
    except BaseException:
        pass


class _LogToTrace(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get(None)
        who = process.name if process is not None else "world"
        text = f"{record.levelname.lower()} {record.name.removeprefix('chronik.')}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        self._world.trace.detail(who, text)
        if record.levelno >= logging.ERROR:
            self._world.complaints.append(text)


class SimNode:
    """A node on a host of its own: the disk and the address stay, processes come and go."""

    def __init__(
        self, world: World, settings: Settings, *, on_started: Callable[[SimNode], None] = lambda node: None
    ) -> None:
        self.world = world
        # Nobody from outside reaches its addresses, whatever they look like.
        self.settings = replace(settings, insecure=True)
        self.name = f"n{settings.node_id}"
        self.host = settings.bind
        self.disk = SimDisk(world.rng(f"disk {self.name}"))
        self.clock_offset_ms = 0
        self.start_count = 0
        self.process: Process | None = None
        self.node: Node | None = None
        """Set while the node serves."""
        self.view: DiskView | None = None
        self.error: BaseException | None = None
        """Why the last start failed or the node ended by itself."""
        self._on_started = on_started
        self._served: list[asyncio.Task[Any]] = []
        """Calls in the node's process that end when the node stops."""
        self._death: asyncio.Future[None] | None = None
        self.on_crash: Callable[[bool], None] = lambda power_lost: None
        """Called before the process is killed, with whether power is lost."""
        self.power_loss_next = True
        """Whether the next crash inside a write is a power loss."""

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def is_serving(self) -> bool:
        return self.is_alive and self.node is not None

    def now_ms(self) -> int:
        return EPOCH_MS + self.clock_offset_ms + int(self.world.loop.now * 1000)

    # --- life --------------------------------------------------------------------------------------

    def start(self, *, crash_in: int | None = None) -> None:
        """Begin a new process; `crash_in` lets it die inside that change of its disk, recovery included."""
        assert not self.is_alive
        self.start_count += 1
        self.error = None
        self._served.clear()
        self.world.network.power_on(self.host)
        process = self.process = self.world.process(self.name, self.host)
        view = self.view = DiskView(self.disk, process, self.world.loop, self._crash_inside)
        self.world.views.append(view)
        view.crash_in = crash_in
        self.world.trace.tell(self.name, f"starts for the {self.start_count}. time")
        self.world.loop.spawn(process, self._live(process, view))

    async def _live(self, process: Process, view: DiskView) -> None:
        rng = self.world.rng(f"{self.name} start {self.start_count}")
        try:
            objects = None
            if self.settings.object_store is not None:
                objects = SimObjectsView(self.world.objects, self.host)
            node = Node(
                self.settings, disk=view, now_ms=self.now_ms, rng=rng, with_http=False, objects=objects
            )
            await node.start()
        except Crashed:
            raise
        except (OSError, ChronikError) as error:
            self.error = error
            self.world.trace.tell(self.name, f"could not start: {error}")
            self.world.bury(process)
            return
        except (Exception, InvariantViolated) as error:
            self.error = error
            self.world.loop.fail(f"{self.name} could not start: {error!r}")
            if process.alive:
                self.world.bury(process)
            return
        self.node = node
        self.world.trace.tell(self.name, "serves")
        self._on_started(self)

    def crash(self, *, power_lost: bool, why: str = "") -> None:
        """Kill the process; with `power_lost`, the host and whatever was not synced go as well."""
        process = self.process
        assert process is not None
        assert process.alive
        kind = "loses power" if power_lost else "is killed"
        self.world.trace.tell(self.name, f"{kind} {why}".rstrip())
        self.on_crash(power_lost)
        self.node = None
        if self._death is not None and not self._death.done():
            self._death.set_result(None)
        self.world.bury(process, power_lost=power_lost)
        # Inside work of an I/O thread it is later than the loop thinks: what it did before has happened.
        moment = self.world.loop.now if self.view is None else self.view.moment()
        if not power_lost:
            self.disk.finish(moment)
        else:
            for what in self.disk.lose_power(moment):
                self.world.trace.detail(self.name, f"after the power loss: {what}")

    def _crash_inside(self, why: str) -> None:
        self.crash(power_lost=self.power_loss_next, why=why)

    async def stop(self) -> list[str]:
        """Stop in order, as a signal does. Returns what the process still held afterwards."""
        node, process, view = self.node, self.process, self.view
        assert node is not None
        assert process is not None
        assert view is not None
        self.world.trace.tell(self.name, "is stopped")
        self.node = None
        self._death = self.world.loop.create_future()
        stopping = self.world.loop.spawn(process, self._stop(node))
        await asyncio.wait((stopping, self._death), return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            return []
        stopping.result()
        leaks = [f"file {path}" for path in view.open_files.values()]
        leaks += [f"connection {transport.number}" for transport in process.transports]
        leaks += [f"port {server.address[1]}" for server in process.servers]
        leaks += [f"task {_name(task)}" for task in process.live_tasks()]
        self.world.bury(process)
        return [f"{self.name} still holds {leak} after its stop" for leak in leaks]

    async def _stop(self, node: Node) -> None:
        served, self._served = [task for task in self._served if not task.done()], []
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
        await node.stop()

    def pause(self) -> None:
        assert self.process is not None
        self.world.loop.pause(self.process)

    def resume(self) -> None:
        if self.process is not None:
            self.world.loop.resume(self.process)

    async def lead(self, tp: TopicPartition) -> None:
        """Inside the node's process: ask for the leadership of a partition, as users may."""
        if self.node is None:
            return  # it has begun to stop
        metadata = self.node.parts.metadata
        topic, known = metadata.state.topics.get(tp.topic), metadata.state.partition(tp)
        if topic is None or known is None:
            return
        command = ChangePartition(
            topic_id=topic.topic_id,
            partition=tp.partition,
            partition_epoch=known.partition_epoch,
            leader=self.settings.node_id,
        )
        try:
            await metadata.submit(command)
        except ChronikError as error:
            self.world.trace.detail(self.name, f"does not lead {tp}: {error}")

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something inside the node's process."""
        assert self.process is not None
        return self.world.loop.spawn(self.process, work)

    def serve(self, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something inside the node's process as its HTTP port does: it ends when the node stops."""
        task = self.run(request)
        self._served.append(task)
        return task


def _name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", "task")
