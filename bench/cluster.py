"""Three chronik nodes and three Apache Kafka 4.1 nodes, by turns, on this machine (`make bench-cluster`).

Replication factor 3 and min.insync.replicas 2 on both; everything else as it comes, so Apache Kafka does not
sync and chronik does. Each round of each load has a cluster of its own, just started, by turns,
so that no figure depends on what ran before it; the table shows medians. `--warm` runs a
round's loads on one cluster, so that the later ones find Apache Kafka's code compiled.

Each figure with a bar is green or red; the exit code is 1 if any is red. What is aimed at beyond the bar is
green or yellow, and named below the table where it is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.bars import end, unmeasured, verdict
from bench.cluster_dead import REFUSED, STALL, dead_follower
from bench.cluster_inside import (
    BESIDE_DATA,
    DIFFERING,
    STAGES,
    ULTRA,
    WATERMARK,
    agreement,
    inside,
    with_ultra,
)
from bench.cluster_loads import (
    Brokers,
    Results,
    acks_1,
    admin_of,
    auto_create,
    bulk,
    create,
    killed_leader,
    many_sends,
    many_threads,
    memory,
    one_message,
    paced,
    paced_finely,
    settle,
    topics,
    visible,
    wake,
)
from bench.compare import RESULTS, in_turn
from chronik.testing import Cluster
from tests.apache_cluster import apache_cluster

Figures = dict[str, dict[str, list[float]]]
"""Figure -> cluster -> one value a round."""

KINDS = ("kafka", "chronik")
START = "start to first acks=all, s"
QUORUM = "first acks=all after the quorum is up, s"


class Aim(NamedTuple):
    row: str
    """Of the requirements; empty where it is this project's own."""
    bar: str
    """A sign and a limit; a limit that ends in x is one for the ratio to Apache Kafka."""
    wish: str = ""
    """What is aimed at beyond the bar; missing it is shown, and no failure."""


def _stage(stage: str, share: str = "p50 ms") -> str:
    return f"{STAGES[stage]}, {share}"


AIMS = {
    "one message acks=all, p50 ms": Aim("S02", "< 10"),
    "one message acks=all, p99 ms": Aim("S02", "< 20"),
    STALL: Aim("S02", "< 1.5"),
    REFUSED: Aim("S02", "< 20"),
    "128 threads acks=all, msg/s": Aim("S03", "> 652"),
    "128 threads acks=all, p50 ms": Aim("S03", "< 86"),
    "128 threads acks=all, p95 ms": Aim("S03", "< 200"),
    "128 threads acks=all, p99 ms": Aim("S03", "< 260"),
    "128 threads acks=all, failed": Aim("S03", "0"),
    "128 sends by librdkafka acks=all, msg/s": Aim("S03", ">= 15000", ">= 20000"),
    "128 sends by librdkafka acks=all, p99 ms": Aim("S03", "< 20", "< 15"),
    "128 sends by librdkafka acks=all, failed": Aim("S03", "0"),
    QUORUM: Aim("S07", "< 2"),
    _stage("wal"): Aim("S06", "< 1"),
    _stage("sent"): Aim("S06", "< 2"),
    _stage("followers"): Aim("S06", "< 5"),
    _stage("applied", "p99 ms"): Aim("S06", "< 10"),
    _stage("followers", "p99 ms"): Aim("S06, S16", "< 10"),
    BESIDE_DATA: Aim("S16", "< 50"),
    f"{ULTRA}, p50 ms": Aim("S17", "<= 2"),
    f"{ULTRA}, p99 ms": Aim("S17", "< 10"),
    "auto-create and produce, p50 ms": Aim("S12", "< 50"),
    "topic named by every node, p99 ms": Aim("S14", "< 100"),
    "100 topics at once, named by every node, s": Aim("S14", "< 5"),
    "100 topics in a request, topics/s": Aim("S21", "> 200"),
    "create one topic, mean ms": Aim("S21", "< 10"),
    "consumed of what acks=1 took, %": Aim("S24", "100"),
    WATERMARK: Aim("S25", "< 10"),
    "long poll answered after the commit, p50 ms": Aim("S26", "< 2"),
    "bulk 256 B acks=1, msg/s": Aim("", ">= 1.2x"),
    "bulk 256 B acks=all, msg/s": Aim("", ">= 1.2x"),
    "1,000 msg/s acks=all, p50 ms": Aim("", "<= 0.5x"),
    "1,000 msg/s acks=all, p99 ms": Aim("", "<= 0.5x"),
    "1,000 msg/s acks=all by librdkafka, p50 ms": Aim("", "<= 0.5x"),
    "1,000 msg/s acks=all by librdkafka, p99 ms": Aim("", "<= 0.5x"),
    "pause when a leader is killed, s": Aim("", "< 1.5"),
    DIFFERING: Aim("S15", "0"),
}


ELSEWHERE = (
    "S05 (produce beside the search indexer) is measured by make bench-query, S20 (WAL profiles) by make "
    "bench-profiles, L05 and T33 by make bench-partitions, T32 by make bench-history"
)
Load = tuple[str, Callable[[Brokers], Results]]


def loads(scale: float) -> list[list[Load]]:
    """In groups that share a cluster. `scale` 1 takes about eight minutes for a round of both kinds."""
    records = int(1_000_000 * scale)
    return [
        [("one message", lambda b: one_message(b, max(100, int(1000 * scale))))],
        [
            ("topics", lambda b: topics(b, max(20, int(50 * scale)))),
            ("auto-create", lambda b: auto_create(b, max(5, int(20 * scale)))),
        ],
        [("128 sends", lambda b: many_sends(b, max(5, 30 * scale)))],
        [
            ("visible", lambda b: visible(b, max(10, int(50 * scale)))),
            ("wake", lambda b: wake(b, max(100, int(1000 * scale)))),
            ("acks=1", lambda b: acks_1(b, 5_000)),
        ],
        [("128 threads", lambda b: many_threads(b, max(10, 60 * scale)))],
        [("bulk acks=1", lambda b: bulk(b, "1", records))],
        [("bulk acks=all", lambda b: bulk(b, "all", records)), ("memory after bulk", memory)],
        [("paced", lambda b: paced(b, max(10, int(30 * scale))))],
        [("paced finely", lambda b: paced_finely(b, max(10, int(30 * scale))))],
        [("inside", lambda b: inside(b, max(50, int(500 * scale))))],
        [("ultra", lambda b: with_ultra(b, max(50, int(200 * scale))))],
        [("dead follower", dead_follower)],
        [("killed leader", killed_leader)],
    ]


def chosen(scale: float, name: str, *, is_warm: bool) -> list[list[Load]]:
    groups = [[load for load in group if name in load[0]] for group in loads(scale)]
    if is_warm:
        groups = [[load for group in groups for load in group]]
    return [group for group in groups if group]


@contextmanager
def started(kind: str, figures: Figures) -> Iterator[Brokers]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        if kind == "chronik":
            with closing(Cluster(3, folder=folder, can_partition=False)) as cluster:
                began = time.monotonic()
                cluster.start()
                up = time.monotonic()
                _first(cluster, figures, kind, began)
                figures[QUORUM][kind].append(time.monotonic() - up)
                yield cluster
        else:
            with apache_cluster(folder) as apache:
                apache.prepare()
                began = time.monotonic()
                apache.start()
                _first(apache, figures, kind, began)
                yield apache


def _first(brokers: Brokers, figures: Figures, kind: str, began: float) -> None:
    create(admin_of(brokers), "begin")
    settle(brokers, "begin")
    figures[START][kind].append(time.monotonic() - began)


def measure(kind: str, group: list[Load], figures: Figures, console: Console) -> None:
    """Some loads, one after the other, on one cluster; then whether its replicas agree."""
    with started(kind, figures) as brokers:
        for name, load in [*group, ("agreement", agreement)]:
            began = time.monotonic()
            results: Results = load(brokers)
            for figure, value in results.items():
                figures[figure][kind].append(value)
            told = ", ".join(f"{figure.split(', ')[-1]} {value:,.2f}" for figure, value in results.items())
            console.print(f"[dim]{kind}: {name} ({time.monotonic() - began:.0f} s): {told}[/dim]")


def below_aim(figures: Figures) -> list[str]:
    """Figures that reach their bar, or not, and miss what is aimed at beyond it."""
    return [
        f"{figure} {aim.wish}: {statistics.median(own):,.2f}"
        for figure, aim in AIMS.items()
        if aim.wish and (own := figures.get(figure, {}).get("chronik"))
        if not verdict(aim.wish, statistics.median(own))
    ]


def _wished(wish: str, own: float | None) -> str:
    if not wish or own is None:
        return wish
    return f"[{'green' if verdict(wish, own) else 'yellow'}]{wish}[/]"


def table(figures: Figures) -> tuple[Table, list[str]]:
    """All figures, and the names of those that miss their bar."""
    out = Table(title="three nodes of chronik beside three of Apache Kafka 4.1", caption=ELSEWHERE)
    out.add_column("row")
    out.add_column("figure")
    for heading in ("Apache Kafka", "chronik", "ratio", "bar (or red)", "aim (or yellow)"):
        out.add_column(heading, justify="right")
    missed = []
    order = list(AIMS)
    for figure in sorted(figures, key=lambda name: order.index(name) if name in AIMS else len(order)):
        middle = {kind: statistics.median(found) for kind, found in figures[figure].items() if found}
        kafka, own = middle.get("kafka"), middle.get("chronik")
        ratio = own / kafka if own is not None and kafka else None
        row, bar, wish = AIMS.get(figure, Aim("", ""))
        reached = verdict(bar, own, ratio) if bar and own is not None else None
        if reached is False:
            missed.append(figure)
        out.add_row(
            row,
            figure,
            *("" if value is None else f"{value:,.{0 if value >= 100 else 2}f}" for value in (kafka, own)),
            "" if ratio is None else f"{ratio:.2f}",
            bar,
            _wished(wish, own),
            style="" if reached is None else "green" if reached else "red",
        )
    return out, missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of everything")
    parser.add_argument("--rounds", type=int, default=1, help="how often each cluster is measured (1)")
    parser.add_argument("--scale", type=float, help="share of the full length (1.0)")
    parser.add_argument("--only", choices=KINDS, help="measure one cluster alone")
    parser.add_argument("--warm", action="store_true", help="all loads of a round on the same cluster")
    parser.add_argument("--load", default="", help="only the loads whose name contains this")
    options = parser.parse_args()
    scale = options.scale or (0.1 if options.quick else 1.0)
    kinds = [options.only] if options.only else list(KINDS)
    groups = chosen(scale, options.load, is_warm=options.warm)
    figures: Figures = defaultdict(lambda: defaultdict(list))
    console = Console()
    for number in range(options.rounds):
        for group in groups:
            for kind in in_turn(kinds, number):
                measure(kind, group, figures, console)
    shown, missed = table(figures)
    console.print(shown)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "cluster.json").write_text(json.dumps(figures, indent=2) + "\n")
    complaints = [f"{figure} {AIMS[figure].bar}" for figure in missed]
    if not options.load and options.only != "kafka":
        measured = [figure for figure, found in figures.items() if found.get("chronik")]
        complaints += unmeasured(AIMS, measured)
    for figure in below_aim(figures):
        console.print(f"[yellow]below the aim: {figure}[/yellow]")
    return end(console, complaints)


if __name__ == "__main__":
    sys.exit(main())
