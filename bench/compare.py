"""Apache Kafka 4.1 and chronik, by turns, on this machine, in one run (`make bench`).

Apache Kafka runs with its defaults, which do not sync; chronik runs with its defaults, which do. Both are up,
one is driven at a time: every workload runs on one and at once on the other, in alternating order, so that
what else the machine does hits both alike. The ratio is the median of the pairs', the spread its extremes.

Each round of each workload (with the reading of what it wrote) has brokers of its own, just started, so that
no figure depends on what ran before it. `--warm` runs everything on the same two brokers: all but the first
rounds then show Apache Kafka with its code compiled, which is another race (decision 0001).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import confluent_kafka
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from bench.workloads import Workload, workloads
from tests.apache import ApacheKafka
from tests.node import ChronikNode
from tests.process import ServerProcess

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
KINDS: dict[str, type[ApacheKafka] | type[ChronikNode]] = {"kafka": ApacheKafka, "chronik": ChronikNode}
Figures = dict[str, dict[str, list[float]]]
"""Figure -> broker -> one value a round."""

START = "start to first produce, s"
RSS_IDLE = "memory when idle, MB"
RSS_AFTER = "memory after each group of loads, MB"
CPU = "broker CPU of each group of loads, s"
STOP = "stop, s"


def first_produce(broker: ServerProcess) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    outcomes: list[object] = []

    def delivered(error: object, _: object) -> None:
        outcomes.append(error)

    producer.produce("first", b"hello", on_delivery=delivered)
    producer.flush(30)
    if outcomes != [None]:
        raise RuntimeError(f"the first record did not arrive: {outcomes}")


def in_turn(kinds: Sequence[T], number: int) -> Sequence[T]:
    """Who goes first changes from round to round."""
    return kinds if number % 2 == 0 else kinds[::-1]


def measure_starts(names: list[str], rounds: int, figures: Figures, progress: Progress) -> None:
    """From nothing to the first acknowledged record, and what an idle broker needs."""
    task = progress.add_task("starting and stopping", total=rounds * len(names))
    for number in range(rounds):
        for name in in_turn(names, number):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                broker = KINDS[name](Path(folder))
                broker.prepare()
                try:
                    began = time.monotonic()
                    broker.start()
                    first_produce(broker)
                    figures[START][name].append(time.monotonic() - began)
                    figures[RSS_IDLE][name].append(broker.rss_bytes() / 1e6)
                    figures[STOP][name].append(broker.stop(timeout_s=60))
                finally:
                    broker.kill()
            progress.advance(task)


def measure_loads(
    names: list[str],
    loads: list[Workload],
    rounds: int,
    figures: Figures,
    progress: Progress,
    *,
    is_warm: bool,
) -> None:
    task = progress.add_task("workloads", total=rounds * len(loads) * len(names))
    if is_warm:
        measure_group(names, loads, range(rounds), figures, progress, task)
        return
    for number in range(rounds):
        for group in grouped(loads):
            measure_group(names, group, range(number, number + 1), figures, progress, task)


def grouped(loads: list[Workload]) -> list[list[Workload]]:
    """Those that share a topic, in their order."""
    groups: dict[str, list[Workload]] = defaultdict(list)
    for load in loads:
        groups[load.topic].append(load)
    return list(groups.values())


def measure_group(
    names: list[str],
    loads: list[Workload],
    numbers: range,
    figures: Figures,
    progress: Progress,
    task: TaskID,
) -> None:
    """These rounds of these workloads, on brokers of their own, and what those needed for them."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as running:
        brokers = {name: KINDS[name](Path(folder) / name) for name in names}
        for broker in brokers.values():
            running.enter_context(broker)
        for number in numbers:
            for load in loads:
                for name in in_turn(names, number):
                    progress.update(task, description=f"{brokers[name].name}: {load.name}")
                    figures[load.name][name].append(load.run(brokers[name], number))
                    progress.advance(task)
        for name, broker in brokers.items():
            figures[RSS_AFTER][name].append(broker.rss_bytes() / 1e6)
            figures[CPU][name].append(broker.cpu_seconds())


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(figures: Figures, loads: list[Workload]) -> Table:
    out = Table(title="chronik beside Apache Kafka 4.1")
    out.add_column("figure")
    for heading in ("Apache Kafka", "chronik", "ratio", "spread", "aim"):
        out.add_column(heading, justify="right")
    aims = {load.name: load.target for load in loads}
    for figure, values in figures.items():
        medians = [shown(statistics.median(values[name])) if values[name] else "" for name in KINDS]
        pairs = [ours / theirs for theirs, ours in zip(values["kafka"], values["chronik"], strict=False)]
        ratio = statistics.median(pairs) if pairs else None
        aim = aims.get(figure)
        out.add_row(
            figure + (", records/s" if aim else ""),
            *medians,
            "" if ratio is None else f"{ratio:.2f}",
            f"{min(pairs):.2f} to {max(pairs):.2f}" if len(pairs) > 1 else "",
            f">= {aim}" if aim else "",
            style="" if ratio is None or aim is None else "green" if ratio >= aim else "red",
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the records")
    parser.add_argument("--rounds", type=int, help="how often everything is measured (5)")
    parser.add_argument("--scale", type=float, help="share of the full number of records (1.0)")
    parser.add_argument("--warm", action="store_true", help="the same brokers for everything")
    parser.add_argument("--only", choices=tuple(KINDS), help="measure one broker alone")
    parser.add_argument("--load", default="", help="only the workloads whose name contains this")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    loads = workloads(options.scale or (0.1 if options.quick else 1.0))
    loads = [load for load in loads if options.load in load.name]
    names = [options.only] if options.only else list(KINDS)

    figures: Figures = defaultdict(lambda: defaultdict(list))
    console = Console()
    with Progress(console=console, transient=True) as progress:
        measure_starts(names, rounds, figures, progress)
        measure_loads(names, loads, rounds, figures, progress, is_warm=options.warm)
    console.print(table(figures, loads))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "compare.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
