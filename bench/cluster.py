"""Three chronik nodes and three Apache Kafka 4.1 nodes, by turns, on this machine (`make bench-cluster`).

Replication factor 3 and min.insync.replicas 2 on both; everything else as it comes, so Apache Kafka does not
sync and chronik does. Each round of each load has a cluster of its own, just started, by turns,
so that no figure depends on what ran before it; the table shows medians. `--warm` runs a
round's loads on one cluster, so that the later ones find Apache Kafka's code compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.cluster_inside import DIFFERING, STAGES, WATERMARK, agreement, inside
from bench.cluster_loads import (
    Brokers,
    Results,
    admin_of,
    auto_create,
    bulk,
    create,
    killed_leader,
    many_threads,
    memory,
    one_message,
    paced,
    paced_finely,
    settle,
    topics,
)
from bench.compare import RESULTS, in_turn
from chronik.testing import Cluster
from tests.apache_cluster import apache_cluster

Figures = dict[str, dict[str, list[float]]]
"""Figure -> cluster -> one value a round."""

KINDS = ("kafka", "chronik")
START = "start to first acks=all, s"
AIMS = {
    "one message acks=all, p50 ms": "< 10",
    "128 threads acks=all, msg/s": ">= 1.5x",
    "128 threads acks=all, p99 ms": "< 1x",
    "128 threads acks=all, failed": "0",
    "bulk 256 B acks=1, msg/s": ">= 1.2x",
    "bulk 256 B acks=all, msg/s": ">= 1.2x",
    "1,000 msg/s acks=all, p50 ms": "<= 0.5x",
    "1,000 msg/s acks=all, p99 ms": "<= 0.5x",
    "1,000 msg/s acks=all by librdkafka, p50 ms": "<= 0.5x",
    "1,000 msg/s acks=all by librdkafka, p99 ms": "<= 0.5x",
    "create one topic, p50 ms": "< 10",
    "100 topics in a request, topics/s": "> 400",
    "auto-create and produce, p50 ms": "< 50",
    **dict.fromkeys((*STAGES.values(), WATERMARK), "< 10"),
    "pause when a leader is killed, s": "< 1.5",
    DIFFERING: "0",
}


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
        [("128 threads", lambda b: many_threads(b, max(10, 60 * scale)))],
        [("bulk acks=1", lambda b: bulk(b, "1", records))],
        [("bulk acks=all", lambda b: bulk(b, "all", records)), ("memory after bulk", memory)],
        [("paced", lambda b: paced(b, max(10, int(30 * scale))))],
        [("paced finely", lambda b: paced_finely(b, max(10, int(30 * scale))))],
        [("inside", lambda b: inside(b, max(50, int(500 * scale))))],
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
                _first(cluster, figures, kind, began)
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


def verdict(aim: str, chronik: float, ratio: float | None) -> bool | None:
    """Whether the aim is reached; None when it cannot be told."""
    words = aim.split()
    sign, text = (words[0], words[1]) if len(words) == 2 else ("==", words[0])
    if text.endswith("x"):
        if ratio is None:
            return None
        value, limit = ratio, float(text[:-1])
    else:
        value, limit = chronik, float(text)
    return {">=": value >= limit, "<=": value <= limit, ">": value > limit, "<": value < limit}.get(
        sign, value == limit
    )


def table(figures: Figures) -> Table:
    out = Table(title="three nodes of chronik beside three of Apache Kafka 4.1")
    out.add_column("figure")
    for heading in ("Apache Kafka", "chronik", "ratio", "aim"):
        out.add_column(heading, justify="right")
    for figure, values in figures.items():
        middle = {kind: statistics.median(found) for kind, found in values.items() if found}
        kafka, own = middle.get("kafka"), middle.get("chronik")
        ratio = own / kafka if own is not None and kafka else None
        aim = AIMS.get(figure, "")
        reached = verdict(aim, own, ratio) if aim and own is not None else None
        out.add_row(
            figure,
            *("" if value is None else f"{value:,.{0 if value >= 100 else 2}f}" for value in (kafka, own)),
            "" if ratio is None else f"{ratio:.2f}",
            aim,
            style="" if reached is None else "green" if reached else "red",
        )
    return out


def main() -> None:
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
    console.print(table(figures))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "cluster.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
