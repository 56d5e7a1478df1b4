"""Keeps the shards of a machine running: starts them, starts again what ends, stops all of them in order.

A shard that dies is started again at once; one that dies again soon after waits, twice as long each time. The
supervisor holds no data and serves nobody: when it is killed, its shards end with it (Linux) and recover at
the next start as after any kill.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Final

from chronik.local.layout import ClusterLayout
from chronik.local.probe import wait_ready
from chronik.local.process import STOP_SECONDS_MAX, NodeProcess, ProcessFailed

__all__ = ["Restarts", "Supervisor"]

log = logging.getLogger(__name__)

RESTART_SECONDS: Final = 0.5
RESTART_SECONDS_MAX: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A shard that ran at least this long is started again at once when it ends."""
LOOK_SECONDS: Final = 1.0
"""How often shards are looked at when nothing is heard of them."""
READY_SECONDS_MAX: Final = 120.0


class Restarts:
    """How long to wait before a process that ended is started again. Pure: time comes in."""

    def __init__(self) -> None:
        self._delay = 0.0
        self._started = 0.0
        self.count = 0

    def started(self, now: float) -> None:
        self._started = now

    def ended(self, now: float) -> float:
        """When to start it again."""
        self.count += 1
        if now - self._started >= STEADY_SECONDS or self.count == 1:
            self._delay = 0.0
            return now
        self._delay = min(RESTART_SECONDS_MAX, max(RESTART_SECONDS, 2 * self._delay))
        return now + self._delay


class Supervisor:
    def __init__(self, layout: ClusterLayout, processes: Sequence[NodeProcess]) -> None:
        self._layout = layout
        self._processes = list(processes)
        self._restarts = {one.node.id: Restarts() for one in processes}
        self._due: dict[int, float] = {}
        """When a node that ended is started again."""
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Run until a signal stops it. Raises ProcessFailed if a shard ends before all were ready once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop)
        self._loop.add_signal_handler(signal.SIGCHLD, self._changed.set)
        try:
            for one in self._processes:
                self._start(one)
            if await self._until_ready():
                on_ready()
                await self._keep()
        finally:
            await self._end()

    def _stop(self) -> None:
        if self._stopping.is_set():
            for one in self._processes:
                if one.is_running:
                    one.signal(signal.SIGKILL)
        self._stopping.set()
        self._changed.set()

    def _start(self, one: NodeProcess) -> None:
        one.start()
        self._restarts[one.node.id].started(self._loop.time())

    async def _until_ready(self) -> bool:
        peers = [one.node.peer for one in self._processes]
        ready = asyncio.ensure_future(
            wait_ready(
                peers,
                timeout_s=READY_SECONDS_MAX,
                expected=[peer.id for peer in peers],
                check=self._check_started,
            )
        )
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ready, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ready.done():
            ready.cancel()
            return False
        await ready
        return True

    def _check_started(self) -> None:
        for one in self._processes:
            if not one.is_running and not self._stopping.is_set():
                raise ProcessFailed(
                    f"shard {one.node.id} did not start ({one.log_tail() or 'it said nothing'}): "
                    f"its log is {one.node.log_file}"
                )

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            now = self._loop.time()
            for one in self._processes:
                if one.is_running:
                    continue
                due = self._due.get(one.node.id)
                if due is None:
                    due = self._due[one.node.id] = self._restarts[one.node.id].ended(now)
                    log.warning(
                        "shard %d ended (%s): it is started again in %.1f s",
                        one.node.id,
                        one.exit_code,
                        due - now,
                    )
                if due <= now:
                    del self._due[one.node.id]
                    self._start(one)
            wait = min([LOOK_SECONDS, *(max(0.0, due - now) for due in self._due.values())])
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _end(self) -> None:
        """Stop all shards at the same time; kill what has not ended after `STOP_SECONDS_MAX`."""
        for one in self._processes:
            if one.is_running:
                one.signal(signal.SIGTERM)
        deadline = self._loop.time() + STOP_SECONDS_MAX
        while running := [one for one in self._processes if one.is_running]:
            self._changed.clear()
            if self._loop.time() > deadline:
                for one in running:
                    log.error("shard %d does not stop: it is killed", one.node.id)
                    one.signal(signal.SIGKILL)
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
        for one in self._processes:
            one.wait(0.0)
