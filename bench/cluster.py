"""Three chronik nodes and three Apache Kafka 4.1 nodes, by turns, on this machine (`make bench-cluster`).

Replication factor 3 and min.insync.replicas 2 on both; everything else as it comes, so Apache Kafka does not
sync and chronik does. Each round of each load has a cluster of its own, just started, by turns,
so that no figure depends on what ran before it; the table shows medians. `--warm` runs a
round's loads on one cluster, so that the later ones find Apache Kafka's code compiled.

Each figure with a bar is green or red; the exit code is 1 if any is red, or if nobody measured it. What is
aimed at beyond the bar is green or yellow, and named below the table where it is missed. `--write` puts the
table into docs/PERFORMANCE.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console

from bench.bars import end, unmeasured
from bench.cluster_dead import dead_follower
from bench.cluster_inside import agreement, inside, with_ultra
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
from bench.cluster_table import AIMS, QUORUM, Figures, below_aim, page, table, unjudged
from bench.compare import DOCS, RESULTS, in_turn
from bench.pages import put
from chronik.testing import Cluster
from tests.apache_cluster import apache_cluster

KINDS = ("kafka", "chronik")
START = "start to first acks=all, s"
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of everything")
    parser.add_argument("--rounds", type=int, default=1, help="how often each cluster is measured (1)")
    parser.add_argument("--scale", type=float, help="share of the full length (1.0)")
    parser.add_argument("--only", choices=KINDS, help="measure one cluster alone")
    parser.add_argument("--warm", action="store_true", help="all loads of a round on the same cluster")
    parser.add_argument("--load", default="", help="only the loads whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the table into docs/PERFORMANCE.md")
    options = parser.parse_args()
    if options.write and (options.only or options.load):
        parser.error("the page has the figures of both clusters and of every load: no --only, no --load")
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
    complaints += unjudged(figures)
    if options.write:
        put(DOCS / "PERFORMANCE.md", "cluster", page(figures, options.rounds))
    for figure in below_aim(figures):
        console.print(f"[yellow]below the aim: {figure}[/yellow]")
    return end(console, complaints)


if __name__ == "__main__":
    sys.exit(main())
