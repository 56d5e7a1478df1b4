"""Draws the way of one produce with acks=all through three nodes: every call, file by file.

Three nodes run in the simulator without faults. After a few requests that warm everything up, one request is
followed from the leader's socket to the answer, and the call hops are counted. What the metadata quorum, the
client and the simulator do meanwhile is left out; a request during which a timer of theirs fired is repeated.

A hop is one call of a function of the broker. A crossing is a call from one file into another. It points
backwards if the file that is called also calls, directly or through others, the file that calls it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import chronik
from chronik.client import Admin, Cluster, Producer
from chronik.client.admin import NewTopic
from chronik.config import Address, Peer, Settings
from chronik.sim.cluster import SimCluster
from chronik.sim.loop import EPOCH_MS
from chronik.sim.process import CURRENT
from chronik.sim.world import World

SOURCE: Final = Path(chronik.__file__).parent
OUTSIDE: Final = ("client/", "sim/", "check/")
NODES: Final = ("n1", "n2", "n3")
QUORUM: Final = ("raft/", "cluster/controller.py")
COMPREHENSIONS: Final = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>"})
WARM_UP: Final = 20
"""Requests before the one that is followed: by then the connection repeats itself, and nothing is loaded."""
ATTEMPTS_MAX: Final = 200


class Hop(NamedTuple):
    node: str
    depth: int
    caller: str
    """The file whose function made the call; empty if it was the loop."""
    file: str
    function: str


class Recorder:
    """A profile function that writes down the calls of broker code."""

    def __init__(self) -> None:
        self.hops: list[Hop] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        file = _file(frame)
        if file is None or file.startswith(OUTSIDE) or frame.f_code.co_name in COMPREHENSIONS:
            return
        process = CURRENT.get(None)
        if process is not None and process.name in NODES:
            callers = _callers(frame)
            caller = callers[0] if callers else ""
            self.hops.append(Hop(process.name, len(callers), caller, file, frame.f_code.co_qualname))


def _file(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else None


def _callers(frame: FrameType) -> list[str]:
    """The files of the broker's functions that this call is inside of, innermost first."""
    found = []
    outer = frame.f_back
    while outer is not None:
        file = _file(outer)
        if file is not None and not file.startswith(OUTSIDE):
            found.append(file)
        outer = outer.f_back
    return found


class Way(NamedTuple):
    hops: list[Hop]

    @property
    def files(self) -> set[str]:
        return {hop.file for hop in self.hops}

    @property
    def crossings(self) -> list[tuple[str, str]]:
        """Calls between files: (from, into)."""
        return [(hop.caller, hop.file) for hop in self.hops if hop.caller not in ("", hop.file)]

    @property
    def backwards(self) -> list[tuple[str, str]]:
        arrows = set(self.crossings)
        return [(at, into) for at, into in self.crossings if at in _reached(into, arrows)]

    def lines(self) -> Iterator[str]:
        for hop in self.hops:
            yield f"{'  ' * hop.depth}{hop.file}: {hop.function}"


def _reached(start: str, arrows: set[tuple[str, str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        at = waiting.pop()
        new = {into for source, into in arrows if source == at} - found
        found |= new
        waiting += new
    return found


async def _follow(world: World) -> Way:
    cluster = SimCluster(world, _settings(), on_started=lambda _node: None)
    cluster.start([0.0] * 3)
    await cluster.until(lambda: len(cluster.serving()) == 3, "every node serves", 60.0)
    addresses = ",".join(f"{node.host}:{node.settings.kafka_port}" for node in cluster.nodes)
    client = world.process("client", "10.0.1.1")
    way = await world.loop.spawn(client, _produce(addresses))
    await cluster.stop()
    return way


async def _produce(addresses: str) -> Way:
    async with Cluster(addresses) as cluster:
        await Admin(cluster).create_topics([NewTopic(name="t", partitions=1)])
        async with Producer(cluster, acks=-1, now_ms=lambda: EPOCH_MS) as producer:
            for attempt in range(ATTEMPTS_MAX):
                recorder = Recorder()
                if attempt >= WARM_UP:
                    sys.setprofile(recorder)
                try:
                    await (await producer.send("t", value=b"x"))
                finally:
                    sys.setprofile(None)
                if attempt >= WARM_UP and not any(hop.file.startswith(QUORUM) for hop in recorder.hops):
                    return Way(recorder.hops)
                await asyncio.sleep(0.03)
    raise SystemExit("no request went through without the quorum's timers")


def _settings() -> list[Settings]:
    peers = tuple(
        Peer(
            id=number,
            kafka=Address(f"10.0.0.{number}", 9092),
            wal=Address(f"10.0.0.{number}", 9291),
            raft=Address(f"10.0.0.{number}", 5001),
        )
        for number in (1, 2, 3)
    )
    return [
        Settings(
            node_id=peer.id,
            data_dir=Path("/data"),
            bind=peer.kafka.host,
            default_replication_factor=3,
            min_insync_replicas=2,
            cluster_id="walk",
            cluster_secret="secret",
            peers=peers,
        )
        for peer in peers
    ]


def way_of_a_produce(seed: int = 1) -> tuple[Way, Way]:
    """The hops on the leader up to the answer, and those on one follower."""
    world = World(seed)
    hops = world.run(_follow(world), seconds_max=100.0, steps_max=1_000_000).hops
    leader = next(hop.node for hop in hops if hop.file.startswith("server/"))
    answered = max(index for index, hop in enumerate(hops) if hop.file.startswith("server/"))
    before = hops[: answered + 1]
    follower = next(hop.node for hop in before if hop.node != leader)
    return (
        Way([hop for hop in before if hop.node == leader]),
        Way([hop for hop in before if hop.node == follower]),
    )


def report() -> Iterator[str]:
    leader, follower = way_of_a_produce()
    both = Way([*leader.hops, *follower.hops])
    yield "| | calls | files | crossings | of them backwards |\n|---|---|---|---|---|"
    for title, way in (("leader", leader), ("one follower", follower), ("both", both)):
        counts = (len(way.hops), len(way.files), len(way.crossings), len(way.backwards))
        yield f"| {title} | {' | '.join(map(str, counts))} |"
    for title, way in (("leader, two followers", leader), ("one follower", follower)):
        yield f"\n## {title}\n"
        yield from (f"    {line}" for line in way.lines())
        yield "\nBackwards:\n"
        yield from (f"    {at} -> {into}" for at, into in dict.fromkeys(way.backwards))


if __name__ == "__main__":
    print("\n".join(report()))
