"""What can go wrong, as a plan: a list of faults with their times, drawn from the seed; it can be shortened.

A fault draws its details from a source of its own, so leaving one out changes no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from chronik.sim.world import SimNode, World

if TYPE_CHECKING:
    from chronik.sim.cluster import SimCluster

Undo: TypeAlias = Callable[[], None]


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Fault:
    number: int
    at: float
    kind: str
    seconds: float
    """How long the fault lasts, if it has a duration."""

    def __str__(self) -> str:
        return f"#{self.number} {self.at:.2f}s {self.kind} for {self.seconds:.2f}s"


Action: TypeAlias = "Callable[[SimCluster, random.Random, Fault], Undo]"


def _pick(cluster: SimCluster, rng: random.Random) -> SimNode | None:
    """A living node: any, or the one that leads something, or the controller."""
    living = [node for node in cluster.nodes if node.is_alive]
    if not living:
        return None
    how = rng.choice(("any", "leader", "controller"))
    chosen = cluster.important(how, rng)
    return chosen if chosen is not None and chosen.is_alive else rng.choice(living)


def _crash(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    node = _pick(cluster, rng)
    if node is None:
        return _nothing
    power_lost = rng.random() < 0.7
    cluster.trace.fault(f"{fault.kind}{' by power loss' if power_lost else ''}", node.name, str(fault))
    node.crash(power_lost=power_lost)
    crash_in = rng.randint(1, 30) if rng.random() < 0.3 else None
    node.power_loss_next = rng.random() < 0.7
    cluster.revive_later(node, fault.seconds, crash_in=crash_in)
    return _nothing


def _crash_inside(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """The node dies between two steps of some write, whenever that comes."""
    node = _pick(cluster, rng)
    if node is None or node.view is None:
        return _nothing
    node.view.crash_in = rng.randint(1, 20)
    node.power_loss_next = rng.random() < 0.7
    cluster.trace.fault(fault.kind, node.name, f"{fault}: after {node.view.crash_in} changes of the disk")
    return _nothing


def _crash_all(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """All nodes, or most of them, lose power."""
    power_lost = rng.random() < 0.8
    for node in cluster.nodes:
        if node.is_alive and rng.random() < 0.8:
            cluster.trace.fault(fault.kind, node.name, str(fault))
            node.crash(power_lost=power_lost)
            cluster.revive_later(node, fault.seconds * (0.5 + rng.random()))
    return _nothing


def _machine_of(cluster: SimCluster, rng: random.Random) -> list[SimNode]:
    """Living nodes that share a machine: that of a leader, of the controller, or any."""
    chosen = _pick(cluster, rng)
    return cluster.machine_of(chosen) if chosen is not None else []


def _crash_machine(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """A machine loses power, or all its shards are killed; each shard restarts after a delay of its own."""
    power_lost = rng.random() < 0.7
    for node in _machine_of(cluster, rng):
        if node.is_alive:
            cluster.trace.fault(fault.kind, node.name, str(fault))
            node.crash(power_lost=power_lost)
            cluster.revive_later(node, fault.seconds * (0.5 + rng.random()))
    return _nothing


def _pause_machine(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    paused = [node.process for node in _machine_of(cluster, rng) if node.process is not None]
    for process in paused:
        cluster.trace.fault(fault.kind, process.name, str(fault))
        cluster.loop.pause(process)

    def undo() -> None:
        for process in paused:
            cluster.loop.resume(process)

    return undo


def _cut_machine(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """Cut a machine off: its shards reach each other, and perhaps clients, but no other machine."""
    inside = [node.host for node in _machine_of(cluster, rng)]
    if not inside:
        return _nothing
    outside = [node.host for node in cluster.nodes if node.host not in inside]
    if rng.random() < 0.3:
        outside += cluster.client_hosts
    cut = [pair for one in inside for other in outside for pair in ((one, other), (other, one))]
    for source, target in cut:
        cluster.network.block(source, target)
    cluster.trace.fault(fault.kind, "network", f"{fault}: {' and '.join(inside)}")

    def undo() -> None:
        for source, target in cut:
            cluster.network.unblock(source, target)

    return undo


def _crash_again(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """The node dies inside a write, restarts, and soon loses power: recovery must have synced what it
    found."""
    node = _pick(cluster, rng)
    if node is None or node.view is None:
        return _nothing
    node.view.crash_in = rng.randint(1, 6)
    node.power_loss_next = rng.random() < 0.4
    cluster.trace.fault(fault.kind, node.name, f"{fault}: after {node.view.crash_in} changes of the disk")
    return _crash_when_back(cluster, node, rng, fault)


def _crash_when_back(cluster: SimCluster, node: SimNode, rng: random.Random, fault: Fault) -> Undo:
    """Let the next process of this node lose power as soon as it serves, or a little later."""
    former, wait_s = node.start_count, rng.choice((0.01, 0.05, 0.3))

    async def crash() -> None:
        if await cluster.comes(lambda: node.is_serving and node.start_count > former, fault.seconds + 1.5):
            await asyncio.sleep(wait_s * rng.random())
            if node.is_alive:
                node.crash(power_lost=True, why="once more")
                cluster.revive_later(node, fault.seconds)

    return cluster.go_on(crash())


def _large_round(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """Power goes while a commit round of several pages is on its way to the disk, and again soon after."""
    node = _pick(cluster, rng)
    if node is None or node.view is None:
        return _nothing
    node.view.crash_in_round_of = rng.choice((1_500, 3_000, 8_192))
    node.power_loss_next = True
    cluster.trace.fault(fault.kind, node.name, f"{fault}: of {node.view.crash_in_round_of} bytes or more")
    return _crash_when_back(cluster, node, rng, fault)


def _slow_death(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """The disk gets slow, so that many writes are under way, then the node loses power and restarts at
    once."""
    node = _pick(cluster, rng)
    if node is None:
        return _nothing
    node.disk.slowness = rng.choice((100.0, 1000.0))
    wait_s, twice = rng.choice((0.02, 0.1, 0.5)), rng.random() < 0.5
    cluster.trace.fault(fault.kind, node.name, f"{fault}: {node.disk.slowness:.0f} times slower")

    def undo() -> None:
        node.disk.slowness = 1.0
        if node.is_alive:
            node.crash(power_lost=True)
            cluster.revive_later(node, wait_s)
            if twice:
                _crash_when_back(cluster, node, rng, fault)

    return undo


def _isolate_leaders(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """Cut off a leader, then the one that is elected in its place, and so on. Clients reach all of them.

    Each goes on writing for a while in an epoch of its own, of which the others never hear.
    """
    hosts = [node.host for node in cluster.nodes]
    rounds = rng.randint(2, 4)
    tp = cluster.any_partition(rng)
    if len(hosts) < 3 or tp is None:
        return _nothing
    cluster.trace.fault(fault.kind, "network", f"{fault}: {rounds} leaders of {tp}")

    async def in_turn() -> None:
        cut: list[tuple[str, str]] = []
        for _ in range(rounds):
            victim = cluster.leader_of(tp)
            for source, target in cut:
                cluster.network.unblock(source, target)
            if victim is None:
                break
            cluster.trace.tell("network", f"{victim.name}, the leader of {tp}, is cut off")
            cut = [
                pair
                for host in hosts
                if host != victim.host
                for pair in ((victim.host, host), (host, victim.host))
            ]
            for source, target in cut:
                cluster.network.block(source, target)
            if not await cluster.leader_changes(tp, victim, 4.0):
                break
        for source, target in cut:
            cluster.network.unblock(source, target)

    return cluster.go_on(in_turn())


def _move_leader(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """Another replica gets to lead while the leader's disk is slow and so is its way to that replica.

    So the leader has batches that its successor never got, some of them not even on its own disk yet.
    """
    tp = cluster.any_partition(rng)
    former = cluster.leader_of(tp) if tp is not None else None
    others = [node for node in cluster.serving() if node is not former]
    if tp is None or former is None or not others:
        return _nothing
    successor, wait_s = rng.choice(others), 0.1 + 0.4 * rng.random()
    former.disk.slowness = rng.choice((100.0, 1000.0))
    link = cluster.network.link(former.host, successor.host)
    latency, link.latency_s = link.latency_s, rng.choice((0.01, 0.05))
    cluster.trace.fault(fault.kind, former.name, f"{fault}: {successor.name} gets to lead {tp}")

    async def move() -> None:
        await asyncio.sleep(wait_s)
        if successor.is_serving:
            successor.run(successor.lead(tp))
        await asyncio.sleep(1.0)
        former.disk.slowness, link.latency_s = 1.0, latency

    return cluster.go_on(move())


def _restart(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    node = _pick(cluster, rng)
    if node is None or not node.is_serving:
        return _nothing
    cluster.trace.fault(fault.kind, node.name, str(fault))
    cluster.stop_and_revive(node, fault.seconds)
    return _nothing


def _pause(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    node = _pick(cluster, rng)
    if node is None:
        return _nothing
    process = node.process
    assert process is not None
    cluster.trace.fault(fault.kind, node.name, str(fault))
    cluster.loop.pause(process)
    return lambda: cluster.loop.resume(process)


def _slow_disk(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    node = rng.choice(cluster.nodes)
    node.disk.slowness = rng.choice((10.0, 100.0, 1000.0))
    cluster.trace.fault(fault.kind, node.name, f"{fault}: {node.disk.slowness:.0f} times slower")

    def undo() -> None:
        node.disk.slowness = 1.0

    return undo


def _full_disk(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    node = rng.choice(cluster.nodes)
    node.disk.free_bytes = rng.choice((0, 100, 5_000, 50_000))
    cluster.trace.fault(fault.kind, node.name, f"{fault}: {node.disk.free_bytes} bytes left")

    def undo() -> None:
        node.disk.free_bytes = None

    return undo


def _failed_sync(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    node = rng.choice(cluster.nodes)
    node.disk.sync_failures = rng.randint(1, 3)
    cluster.trace.fault(fault.kind, node.name, f"{fault}: {node.disk.sync_failures} syncs fail")

    def undo() -> None:
        node.disk.sync_failures = 0

    return undo


def _rot(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """Flips a bit in segments or their indexes, on one node of the cluster.

    It is found when the file is read again, not in what is in memory; so the node starts again soon.
    """
    node = cluster.rotting = cluster.rotting or rng.choice(cluster.nodes)
    cluster.checkpoint(node)  # only what is on disk rots, and segments are synced by a checkpoint

    async def flip() -> None:
        await asyncio.sleep(0.3)
        files = [
            (path, inode)
            for path, inode in node.disk.files()
            if path.suffix in (".log", ".index", ".timeindex")
            and not path.parent.name.startswith("__")
            and inode.is_on_disk
        ]
        if not files:
            return
        path, inode = rng.choice(files)
        place = inode.flip_bit(rng)
        cluster.trace.fault(f"{fault.kind} of {path.suffix}", node.name, f"{fault}: {path} at byte {place}")
        if node.is_alive:
            node.crash(power_lost=rng.random() < 0.5)
            cluster.revive_later(node, fault.seconds)

    return cluster.go_on(flip())


def _clock_jump(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    node = rng.choice(cluster.nodes)
    node.clock_offset_ms += rng.choice((-60_000, -500, 500, 60_000, 3_600_000))
    cluster.trace.fault(fault.kind, node.name, f"{fault}: wall clock is off by {node.clock_offset_ms} ms")
    return _nothing


def _clock_drift(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    node = _pick(cluster, rng)
    if node is None:
        return _nothing
    process = node.process
    assert process is not None
    rate = rng.choice((0.7, 0.95, 1.05, 1.5))
    cluster.trace.fault(fault.kind, node.name, f"{fault}: timers run at {rate}")
    process.drift(cluster.loop.now, rate)
    return lambda: process.drift(cluster.loop.now, 1.0)


def _break_connections(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    share = rng.choice((0.2, 1.0))
    broken = 0
    for transport in cluster.network.connections():
        if not transport.is_over and rng.random() < share:
            cluster.network.break_connection(transport)
            broken += 1
    if broken:
        cluster.trace.fault(fault.kind, "network", f"{fault}: {broken} connections")
    return _nothing


def _slow_link(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    hosts = cluster.hosts()
    links = [cluster.network.link(a, b) for a in hosts for b in hosts if a != b and rng.random() < 0.4]
    latency_s = rng.choice((0.02, 0.1, 0.5))
    limit = rng.choice((0.0, 20_000.0))
    former = [(link, link.latency_s, link.bytes_per_second) for link in links]
    for link in links:
        link.latency_s, link.bytes_per_second = latency_s, limit
    cluster.trace.fault(fault.kind, "network", f"{fault}: {len(links)} links take {latency_s} s")

    def undo() -> None:
        for link, latency, rate in former:
            link.latency_s, link.bytes_per_second = latency, rate

    return undo


def _partition(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """Split nodes in two, one way or both; or cut one pair and leave the third as a bridge."""
    hosts = [node.host for node in cluster.nodes]
    shape = rng.choice(("isolate", "isolate", "one-way out", "one-way in", "bridge", "split"))
    cut: list[tuple[str, str]] = []
    victim = (cluster.important("leader", rng) or rng.choice(cluster.nodes)).host
    others = [host for host in hosts if host != victim]
    if rng.random() < 0.3:
        others += cluster.client_hosts
    if shape in ("isolate", "one-way out"):
        cut += [(victim, other) for other in others]
    if shape in ("isolate", "one-way in"):
        cut += [(other, victim) for other in others]
    if shape == "bridge" and len(hosts) > 2:
        one, two = rng.sample(hosts, 2)
        cut += [(one, two), (two, one)]
    if shape == "split":
        side = [host for host in hosts if rng.random() < 0.5]
        rest = [host for host in hosts if host not in side]
        cut += [pair for a in side for b in rest for pair in ((a, b), (b, a))]
    for source, target in cut:
        cluster.network.block(source, target)
    cluster.trace.fault(f"{fault.kind} {shape}", "network", f"{fault}: {shape}, {len(cut)} links")

    def undo() -> None:
        for source, target in cut:
            cluster.network.unblock(source, target)

    return undo


def _checkpoint(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """Take a checkpoint. No fault by itself, but other faults near it matter."""
    cluster.checkpoint(rng.choice(cluster.nodes))
    return _nothing


def _slow_objects(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    store = cluster.world.objects
    store.slowness = rng.choice((5.0, 50.0))
    cluster.trace.fault(fault.kind, "objects", f"{fault}: {store.slowness:.0f} times slower")

    def undo() -> None:
        store.slowness = 1.0

    return undo


def _failing_objects(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    store = cluster.world.objects
    store.failing = rng.choice((0.1, 0.5, 1.0))
    cluster.trace.fault(fault.kind, "objects", f"{fault}: {store.failing:.0%} of calls")

    def undo() -> None:
        store.failing = 0.0

    return undo


def _cut_off_objects(cluster: SimCluster, rng: random.Random, fault: Fault) -> Undo:
    """The store answers some hosts no more, or nobody."""
    hosts = [node.host for node in cluster.nodes if rng.random() < 0.6]
    cluster.world.objects.cut_off.update(hosts)
    cluster.trace.fault(fault.kind, "objects", f"{fault}: from {len(hosts)} hosts")

    def undo() -> None:
        cluster.world.objects.cut_off.difference_update(hosts)

    return undo


ACTIONS: Final[dict[str, Action]] = {
    "crash": _crash,
    "crash inside a write": _crash_inside,
    "crash of all": _crash_all,
    "crash of a machine": _crash_machine,
    "pause of a machine": _pause_machine,
    "machine cut off": _cut_machine,
    "crash after a crash": _crash_again,
    "power loss on a slow disk": _slow_death,
    "power loss inside a large round": _large_round,
    "isolated leaders": _isolate_leaders,
    "moved leader": _move_leader,
    "restart": _restart,
    "pause": _pause,
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "failed sync": _failed_sync,
    "bit rot": _rot,
    "clock jump": _clock_jump,
    "clock drift": _clock_drift,
    "broken connections": _break_connections,
    "slow links": _slow_link,
    "partition": _partition,
    "checkpoint": _checkpoint,
    "slow objects": _slow_objects,
    "failing objects": _failing_objects,
    "objects cut off": _cut_off_objects,
}


def draw_plan(rng: random.Random, weights: dict[str, float], *, seconds: float, count: int) -> list[Fault]:
    kinds = rng.choices(list(weights), list(weights.values()), k=count)
    times = sorted(rng.uniform(0.3, seconds) for _ in kinds)
    return [
        Fault(number, at, kind, rng.choice((0.05, 0.3, 1.0, 2.5)) * (0.5 + rng.random()))
        for number, (at, kind) in enumerate(zip(times, kinds, strict=True))
    ]


async def carry_out(world: World, cluster: SimCluster, plan: Sequence[Fault]) -> None:
    """Let every fault happen at its time; returns when the last one is over."""
    begun = world.loop.now
    undoing: list[asyncio.Task[None]] = []
    for fault in plan:
        await asyncio.sleep(max(0.0, begun + fault.at - world.loop.now))
        undo = ACTIONS[fault.kind](cluster, world.rng(f"fault {fault.number}"), fault)
        if undo is not _nothing:
            undoing.append(asyncio.get_running_loop().create_task(_undo_later(cluster, fault, undo)))
    if undoing:
        await asyncio.gather(*undoing)
    await cluster.goings_on()


async def _undo_later(cluster: SimCluster, fault: Fault, undo: Undo) -> None:
    await asyncio.sleep(fault.seconds)
    cluster.trace.tell("world", f"#{fault.number} {fault.kind} is over")
    undo()
