"""Apache Kafka 4.1 and chronik, by turns, on this machine, in one run (`make bench`).

Apache Kafka runs with its defaults, which do not sync; chronik runs with its defaults, which do. Both are up,
one is driven at a time: every workload runs on one and at once on the other, in alternating order, so that
what else the machine does hits both alike. The ratio is the median of the pairs', the spread its extremes.

Two states are measured, and the table shows both, since Apache Kafka gets faster for minutes, until its code
is compiled (decision 0001). Just started: each round of each workload (with the reading of what it wrote) has
brokers of its own. Warm: all rounds of all workloads run on the same two brokers, after one round that does
not count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
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

from bench.bars import end
from bench.workloads import Workload, workloads
from tests.apache import ApacheKafka
from tests.node import ChronikNode
from tests.process import ServerProcess

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
KINDS: dict[str, type[ApacheKafka] | type[ChronikNode]] = {"kafka": ApacheKafka, "chronik": ChronikNode}
Figures = dict[str, dict[str, list[float]]]
"""Figure -> broker -> one value a round."""
STATES = {"started": "on brokers that have just started", "warm": "on warm brokers"}

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


def measure_started(
    names: list[str], loads: list[Workload], rounds: int, figures: Figures, progress: Progress
) -> None:
    measure_starts(names, rounds, figures, progress)
    task = progress.add_task("workloads", total=rounds * len(loads) * len(names))
    for number in range(rounds):
        for group in grouped(loads):
            measure_group(names, group, range(number, number + 1), figures, progress, task)


def measure_warm(
    names: list[str], loads: list[Workload], rounds: int, figures: Figures, progress: Progress
) -> None:
    task = progress.add_task("workloads", total=(rounds + 1) * len(loads) * len(names))
    measure_group(names, loads, range(rounds + 1), figures, progress, task)
    for load in loads:
        for values in figures[load.name].values():
            del values[0]


MEASURES = {"started": measure_started, "warm": measure_warm}


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


def table(states: dict[str, Figures], loads: list[Workload]) -> Table:
    out = Table(title="chronik beside Apache Kafka 4.1")
    out.add_column("figure")
    for heading in ("Apache Kafka", "chronik", "ratio", "spread", "aim"):
        out.add_column(heading, justify="right")
    aims = {load.name: load.target for load in loads}
    for state, figures in states.items():
        out.add_section()
        out.add_row(STATES[state], style="bold")
        for figure, values in figures.items():
            out.add_row(*row(figure, values, aims.get(figure)))
    return out


def pairs_of(values: dict[str, list[float]]) -> list[float]:
    """Ours over theirs, round by round."""
    return [ours / theirs for theirs, ours in zip(values["kafka"], values["chronik"], strict=False)]


def row(figure: str, values: dict[str, list[float]], aim: float | None) -> list[str]:
    medians = [shown(statistics.median(values[name])) if values[name] else "" for name in KINDS]
    pairs = pairs_of(values)
    ratio = f"{statistics.median(pairs):.2f}" if pairs else ""
    if pairs and aim is not None:
        colour = "green" if statistics.median(pairs) >= aim else "red"
        ratio = f"[{colour}]{ratio}[/]"
    return [
        figure + (", records/s" if aim else ""),
        *medians,
        ratio,
        f"{min(pairs):.2f} to {max(pairs):.2f}" if len(pairs) > 1 else "",
        f">= {aim}" if aim else "",
    ]


def chosen(loads: list[Workload], name: str) -> list[Workload]:
    """Those whose name contains this, and those that write what these read."""
    topics = {load.topic for load in loads if name in load.name and load.reads}
    return [load for load in loads if name in load.name or (load.topic in topics and not load.reads)]


def missed(states: dict[str, Figures], loads: list[Workload]) -> list[str]:
    """Loads whose median ratio is below what is aimed at, or that gave no pair of figures."""
    out = []
    for state, figures in states.items():
        for load in loads:
            ratios = pairs_of(figures[load.name])
            if not ratios:
                out.append(f"{load.name}, {STATES[state]}: no pair of figures")
            elif (ratio := statistics.median(ratios)) < load.target:
                out.append(f"{load.name}, {STATES[state]}: {ratio:.2f}, not {load.target}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the records")
    parser.add_argument("--rounds", type=int, help="how often everything is measured (5)")
    parser.add_argument("--scale", type=float, help="share of the full number of records (1.0)")
    parser.add_argument("--state", choices=tuple(STATES), help="measure brokers in one state alone")
    parser.add_argument("--only", choices=tuple(KINDS), help="measure one broker alone")
    parser.add_argument("--load", default="", help="only the workloads whose name contains this")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    loads = chosen(workloads(options.scale or (0.1 if options.quick else 1.0)), options.load)
    names = [options.only] if options.only else list(KINDS)
    states: dict[str, Figures] = {
        state: defaultdict(lambda: defaultdict(list)) for state in MEASURES if options.state in (None, state)
    }
    console = Console()
    with Progress(console=console, transient=True) as progress:
        for state, figures in states.items():
            MEASURES[state](names, loads, rounds, figures, progress)
    console.print(table(states, loads))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "compare.json").write_text(json.dumps(states, indent=2) + "\n")
    return end(console, [] if options.only else missed(states, loads))


if __name__ == "__main__":
    sys.exit(main())
