"""What a cluster costs as it grows: simulated clusters of 3 to 100 nodes with 1,000 to 50,000 partitions.

For each size: virtual time until all nodes belong to the cluster and have the topics; then ten nodes join and
a rebalance is planned; then a node is killed, a rack loses power and the controller is killed, one after the
other, with the virtual time until every partition has a live leader on every node, and what that took: real
processor time of the controller and of the others, bytes that they sent. Metadata memory is that of one node.

The exit code is 1 if a loss of a node takes two seconds or longer (N03).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from chronik.metadata.state import ClusterState
from chronik.sim.large import LargeCluster, LeanNode, Loss, run_large

LEADERS_SECONDS_MAX: Final = 2.0
RACKS: Final = 10
NODES: Final = (3, 10, 30, 100)
PARTITIONS: Final = (1_000, 10_000, 50_000)
QUICK: Final = ((3, 1_000), (10, 1_000), (30, 1_000))
ADDED: Final = 10
SETTLE_SECONDS: Final = 3.0
"""After a start nodes still tell each other who belongs to the quorum."""
IDLE_SECONDS: Final = 2.0


@dataclass(slots=True)
class Size:
    nodes: int
    partitions: int
    start_seconds: float = 0.0
    create_seconds: float = 0.0
    losses: dict[str, Loss] = field(default_factory=dict)
    idle_controller_cpu: float = 0.0
    """Share of a processor that the controller's turns take while nothing happens."""
    idle_controller_bytes: int = 0
    """Sent by the controller in a second in which nothing happens."""
    plan_cpu_seconds: float = 0.0
    plan_longest_turn_seconds: float = 0.0
    planned_moves: int = 0
    metadata_bytes: int = 0
    snapshot_bytes: int = 0
    real_seconds: float = 0.0


def memory(state: ClusterState) -> int:
    """Bytes of the topics and all that they alone are made of."""
    seen: set[int] = set()
    total = 0
    waiting: list[Any] = [state.topics]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or one is None or isinstance(one, bool):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, msgspec.Struct):
            waiting += [getattr(one, name) for name in one.__struct_fields__]
    return total


async def idle(cluster: LargeCluster, size: Size) -> None:
    controller = cluster.controller()
    assert controller is not None
    await cluster.pause(SETTLE_SECONDS)
    before = controller.spent()
    await cluster.pause(IDLE_SECONDS)
    after = controller.spent()
    size.idle_controller_cpu = (after.cpu_seconds - before.cpu_seconds) / IDLE_SECONDS
    size.idle_controller_bytes = int((after.sent_bytes - before.sent_bytes) / IDLE_SECONDS)


async def lose_each(cluster: LargeCluster, size: Size) -> None:
    """One loss after the other. Of three nodes one may go, so there only the first happens."""

    def observer() -> LeanNode:
        return next(node for node in reversed(cluster.live()) if not node.raft.is_leader)

    size.losses["node killed"] = await cluster.lose([observer()], power_lost=False)
    if size.nodes == min(NODES):
        return
    controller = cluster.controller()
    assert controller is not None
    voters = controller.raft.membership.voters
    rack = next(node for node in cluster.live() if node.node_id not in voters).settings.rack
    gone = [node for node in cluster.live() if node.settings.rack == rack and node.node_id not in voters]
    size.losses["rack without power"] = await cluster.lose(gone, power_lost=True)
    if size.nodes >= 30:
        size.losses["controller killed"] = await cluster.lose([controller], power_lost=False)


async def plan(cluster: LargeCluster, size: Size) -> None:
    await cluster.add(ADDED)
    node = cluster.controller()
    assert node is not None
    before = node.spent().cpu_seconds
    node.meter.longest_turn_seconds = 0.0
    moved = await cluster.call(node, node.operations.rebalance(dry_run=True))
    size.plan_cpu_seconds = node.spent().cpu_seconds - before
    size.plan_longest_turn_seconds = node.meter.longest_turn_seconds
    size.planned_moves = moved.replicas


def measure(nodes: int, partitions: int) -> Size:
    size = Size(nodes, partitions)
    began = time.monotonic()

    async def work(cluster: LargeCluster) -> None:
        size.start_seconds = await cluster.start()
        size.create_seconds = await cluster.create(partitions)
        await idle(cluster, size)
        node = cluster.nodes[0]
        size.metadata_bytes = memory(node.metadata.state)
        size.snapshot_bytes = len(node.metadata.snapshot())
        await plan(cluster, size)
        await lose_each(cluster, size)

    run_large(work, nodes=nodes, racks=min(RACKS, nodes))
    size.real_seconds = time.monotonic() - began
    return size


def table(sizes: Iterable[Size]) -> Table:
    shown = Table(title="Large clusters, simulated")
    for name in (
        "nodes", "partitions", "start s", "create s", "idle CPU", "idle KB/s", "metadata MB", "snapshot MB",
        "plan CPU s", "longest turn ms", "moves",
    ):  # fmt: skip
        shown.add_column(name, justify="right")
    for one in sizes:
        shown.add_row(
            f"{one.nodes}",
            f"{one.partitions:,}",
            f"{one.start_seconds:.2f}",
            f"{one.create_seconds:.2f}",
            f"{one.idle_controller_cpu:.1%}",
            f"{one.idle_controller_bytes / 1e3:.0f}",
            f"{one.metadata_bytes / 1e6:.1f}",
            f"{one.snapshot_bytes / 1e6:.1f}",
            f"{one.plan_cpu_seconds:.2f}",
            f"{one.plan_longest_turn_seconds * 1e3:.0f}",
            f"{one.planned_moves:,}",
        )
    return shown


def loss_table(sizes: Iterable[Size]) -> Table:
    shown = Table(title="Until every partition has a live leader on every node")
    for name in (
        "nodes", "partitions", "lost", "virtual s",
        "controller CPU ms", "controller KB", "others CPU ms", "others KB",
    ):  # fmt: skip
        shown.add_column(name, justify="right")
    for one in sizes:
        for what, loss in one.losses.items():
            color = "" if loss.seconds < LEADERS_SECONDS_MAX else "[red]"
            shown.add_row(
                f"{one.nodes}",
                f"{one.partitions:,}",
                what,
                f"{color}{loss.seconds:.2f}",
                f"{loss.controller.cpu_seconds * 1e3:.0f}",
                f"{loss.controller.sent_bytes / 1e3:.0f}",
                f"{loss.others_mean.cpu_seconds * 1e3:.0f}",
                f"{loss.others_mean.sent_bytes / 1e3:.1f}",
            )
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a cluster costs as it grows, simulated.")
    parser.add_argument("--quick", action="store_true", help="three small sizes")
    parser.add_argument("--size", nargs=2, type=int, metavar=("NODES", "PARTITIONS"), help="one size alone")
    given = parser.parse_args(arguments)
    wanted = QUICK if given.quick else [(nodes, each) for each in PARTITIONS for nodes in NODES]
    if given.size:
        wanted = [tuple(given.size)]
    console = Console(width=120)
    sizes: list[Size] = []
    # A process for each, so that no size finds the memory that another one left behind.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for nodes, partitions in wanted:
            sizes.append(pool.submit(measure, nodes, partitions).result())
            console.print(
                f"{nodes} nodes, {partitions:,} partitions: {sizes[-1].real_seconds:.0f} s of real time"
            )
    console.print(table(sizes))
    console.print(loss_table(sizes))
    late = [loss for one in sizes for loss in one.losses.values() if loss.seconds >= LEADERS_SECONDS_MAX]
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
