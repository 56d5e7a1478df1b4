"""The nodes of a run, who keeps them alive, and what invariants may look at."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from chronik.config import Settings
from chronik.model import ChronikError, TopicPartition
from chronik.replication.partition import Partition
from chronik.sim.blackouts import Blackouts
from chronik.sim.world import SimNode, World

_RETRY_SECONDS = 0.5
_CONNECTED_SECONDS_MAX = 15.0
"""Longest time until links are open again: 5 s to notice a silent link, 3 s until a dial is given up, 1 s
until the next one, 5 s for the handshake."""


class SimCluster:
    def __init__(
        self, world: World, settings: Sequence[Settings], *, on_started: Callable[[SimNode], None]
    ) -> None:
        self.world = world
        self.loop = world.loop
        self.network = world.network
        self.trace = world.trace
        self.blackouts = Blackouts(self)
        self._on_started = on_started
        self.nodes = [self._node(each) for each in settings]
        self.leaving: SimNode | None = None
        """The node that is to be removed. At some point it stops serving, however often it is started."""
        self.client_hosts: list[str] = []
        self.rotting: SimNode | None = None
        """The one node whose disk loses bits."""
        self._reviving: dict[SimNode, asyncio.Task[None]] = {}
        self._going_on: list[asyncio.Task[None]] = []
        self._keeper: asyncio.Task[None] | None = None
        self.leaks: list[str] = []

    def _node(self, settings: Settings) -> SimNode:
        def started(node: SimNode) -> None:
            self.blackouts.serves(node)
            self._on_started(node)

        node = SimNode(self.world, settings, on_started=started)
        node.on_crash = lambda power_lost: self.blackouts.crashed(node, power_lost=power_lost)
        return node

    def hosts(self) -> list[str]:
        return [*(node.host for node in self.nodes), *self.client_hosts]

    def serving(self) -> list[SimNode]:
        return [node for node in self.nodes if node.is_serving]

    def by_id(self, node_id: int) -> SimNode | None:
        return next((node for node in self.nodes if node.settings.node_id == node_id), None)

    def machine_of(self, node: SimNode) -> list[SimNode]:
        """This node and those that share its machine, which is their rack; a node without a rack is alone."""
        rack = node.settings.rack
        return [node] if rack is None else [other for other in self.nodes if other.settings.rack == rack]

    def sharing_a_machine(self) -> list[str]:
        """Partitions that would lose two replicas with one machine."""
        out = []
        machines = {node.settings.node_id: node.settings.rack for node in self.nodes}
        for node in self.serving():
            for partition in self.partitions(node):
                places = [machines[replica] for replica in partition.replicas]
                if partition.is_leader and len(set(places)) < min(len(places), len(set(machines.values()))):
                    out.append(f"{partition.tp} has two replicas on a machine: {list(partition.replicas)}")
        return out

    def partitions(self, node: SimNode) -> Iterator[Partition]:
        if node.node is not None and node.is_alive:
            yield from node.node.parts.replicas.all()

    def important(self, role: str, rng: random.Random) -> SimNode | None:
        """The node that leads some partition, or the controller, as far as a serving node knows."""
        serving = self.serving()
        if role == "any" or not serving:
            return None
        node = rng.choice(serving)
        assert node.node is not None
        if role == "controller":
            return self.by_id(node.node.parts.services.controller_id())
        leaders = [partition.leader_id for partition in self.partitions(node)]
        return self.by_id(rng.choice(leaders)) if leaders else None

    def any_partition(self, rng: random.Random) -> TopicPartition | None:
        """One that clients write to."""
        found = {
            partition.tp: None
            for node in self.serving()
            for partition in self.partitions(node)
            if not partition.tp.topic.startswith("__")
        }
        return rng.choice(list(found)) if found else None

    def leader_of(self, tp: TopicPartition) -> SimNode | None:
        """The newest leader that any serving node knows."""
        known = [
            partition for node in self.serving() for partition in self.partitions(node) if partition.tp == tp
        ]
        newest = max(known, key=lambda partition: partition.leader_epoch, default=None)
        return self.by_id(newest.leader_id) if newest is not None else None

    # --- faults that take several steps ------------------------------------------------------------

    def go_on(self, steps: Coroutine[Any, Any, None]) -> Callable[[], None]:
        """Run a fault's further steps beside other faults. Returns an `undo` that does nothing."""
        self._going_on.append(asyncio.get_running_loop().create_task(steps))
        return lambda: None

    async def goings_on(self) -> None:
        await asyncio.gather(*self._going_on)

    async def comes(self, is_true: Callable[[], bool], seconds: float) -> bool:
        """Wait until it is true, but not longer than this."""
        deadline = self.loop.now + seconds
        while not is_true():
            if self.loop.now > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def leader_changes(self, tp: TopicPartition, former: SimNode, seconds: float) -> bool:
        return await self.comes(lambda: self.leader_of(tp) is not former, seconds)

    # --- life --------------------------------------------------------------------------------------

    def start(self, delays: Sequence[float]) -> None:
        """Start each node after its delay, and again when it ends, as a service manager does."""
        for node, delay in zip(self.nodes, delays, strict=True):
            self.revive_later(node, delay)
        self._keeper = asyncio.get_running_loop().create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            for node in self.nodes:
                if not node.is_alive and node not in self._reviving:
                    node.start()

    def revive_later(self, node: SimNode, seconds: float, *, crash_in: int | None = None) -> None:
        async def revive() -> None:
            await asyncio.sleep(seconds)
            del self._reviving[node]
            if not node.is_alive and node in self.nodes:
                node.start(crash_in=crash_in)

        if node not in self._reviving:
            self._reviving[node] = asyncio.get_running_loop().create_task(revive())

    def stop_and_revive(self, node: SimNode, seconds: float) -> None:
        async def stop() -> None:
            leaks = await node.stop()
            self.leaks += leaks
            await asyncio.sleep(seconds)
            del self._reviving[node]
            if not node.is_alive and node in self.nodes:
                node.start()

        if node not in self._reviving:
            self._reviving[node] = asyncio.get_running_loop().create_task(stop())

    def join(self, settings: Settings) -> SimNode:
        """One node more, on a host of its own."""
        node = self._node(settings)
        self.nodes.append(node)
        node.start()
        return node

    async def retire(self, node: SimNode, *, is_killed: bool) -> None:
        """Switch a node off for good: the cluster said that it may be."""
        self.nodes.remove(node)
        self.leaving = None
        node.resume()
        if node.is_serving and not is_killed:
            self.leaks += await node.stop()
        elif node.is_alive:
            node.crash(power_lost=True, why="for good")

    def checkpoint(self, node: SimNode) -> None:
        async def save() -> None:
            if node.node is not None:
                try:
                    await node.node.parts.store.checkpoint()
                except (OSError, ChronikError) as error:
                    self.trace.detail(node.name, f"checkpoint failed: {error}")

        if node.is_serving:
            self.trace.detail(node.name, "checkpoint begins")
            node.run(save())

    async def heal(self) -> None:
        """End every fault and have every node serve again."""
        self.network.heal()
        objects = self.world.objects
        objects.slowness, objects.failing = 1.0, 0.0
        objects.cut_off.clear()
        for node in self.nodes:
            node.disk.free_bytes = None
            node.disk.slowness = 1.0
            node.disk.sync_failures = 0
            node.resume()
            if node.view is not None:
                node.view.crash_in = node.view.crash_in_round_of = None
        await self.until(
            lambda: all(node.is_serving or node is self.leaving for node in self.nodes),
            "every node serves",
            60.0,
        )

    async def converge(self) -> None:
        """Wait, without writers, until all replicas are in the ISR and equal (S15, S23, T01), and before that
        until all links are open (T03).
        """
        await self.until(
            lambda: not self.unconnected(),
            "every node reaches every other",
            _CONNECTED_SECONDS_MAX,
            self.unconnected,
        )
        await self.until(lambda: self.difference() is None, "all replicas agree", 60.0, self.difference)

    def unconnected(self) -> str | None:
        """A link that is not open between two nodes that serve, if there is one."""
        serving = [node for node in self.serving() if node is not self.leaving]
        ids = {node.settings.node_id: node.name for node in serving}
        for node in serving:
            assert node.node is not None
            for peer in node.node.parts.links.dialed.unconnected():
                if peer in ids:
                    return f"{node.name} does not reach {ids[peer]}"
        return None

    def difference(self) -> str | None:
        """The first difference between nodes, or None."""
        states = [node.node.parts.metadata.state for node in self.serving() if node.node is not None]
        if len(states) < len(self.nodes):
            return "a node does not serve"
        if len({state.applied_index for state in states}) > 1:
            return "the metadata of some nodes is behind"
        odd = {len(node.node.parts.raft.core.log.membership.voters) for node in self.serving() if node.node}
        if len(odd) > 1 or not odd <= {1, 3, 5}:
            return f"there are {sorted(odd)} voters"
        ends: dict[TopicPartition, tuple[int, ...]] = {}
        for node in self.nodes:
            for partition in self.partitions(node):
                if len(partition.isr) < len(partition.replicas):
                    return f"{partition.tp} has the ISR {list(partition.isr)} on {node.name}"
                log = partition.log
                ends_here = (log.log_end_offset, log.durable_end_offset, log.synced_end_offset)
                mine = (*ends_here, partition.high_watermark)
                if len(set(mine)) > 1:
                    return f"{partition.tp} on {node.name}: end, durable, synced end, watermark are {mine}"
                if partition.is_leader and partition.last_stable_offset < partition.high_watermark:
                    return f"{partition.tp} has an open transaction at {partition.last_stable_offset}"
                if ends.setdefault(partition.tp, mine) != mine:
                    other = ends[partition.tp][0]
                    return f"{partition.tp} ends at {mine[0]} on {node.name}, at {other} elsewhere"
        return None

    async def until(
        self,
        is_true: Callable[[], bool],
        what: str,
        seconds: float,
        why: Callable[[], str | None] = lambda: None,
    ) -> None:
        deadline = self.loop.now + seconds
        while not is_true():
            if self.loop.now > deadline:
                reason = f" ({found})" if (found := why()) else ""
                raise TimeoutError(f"not within {seconds:.0f} s after everything was healed: {what}{reason}")
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Stop all nodes in order; whatever they leave behind is a leak."""
        if self._keeper is not None:
            self._keeper.cancel()
        for node in self.nodes:
            if node.is_serving:
                self.leaks += await node.stop()
