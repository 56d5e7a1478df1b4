"""Apache Kafka 4.1 and chronik, by turns, on this machine, in one run (`make bench-short`).

Apache Kafka runs with its defaults, which do not sync; chronik runs with its defaults, which do. Both are up,
one is driven at a time: every workload runs on one and at once on the other, in alternating order, so that
what else the machine does hits both alike. The ratio is the median of the pairs', the spread its extremes.

Two states are measured, and the table shows both, since Apache Kafka gets faster for minutes, until its code
is compiled (decision 0001). Just started: each round of each workload (with the reading of what it wrote) has
brokers of its own. Warm: all rounds of all workloads run on the same two brokers, after one round that does
not count. A third part of the table compares at equal durability: warm, and Apache Kafka syncs each write too
(`log.flush.interval.messages=1`). A fourth compares at the weaker promise: warm, Apache Kafka as it comes,
and chronik's topics have `flush.ms=1000`, so that both acknowledge from the page cache.

`--write` puts the table into docs/PERFORMANCE.md and draws docs/bench.svg for the README.
`--before FOLDER` puts chronik out of another source tree in Apache Kafka's place: did a change cost speed?
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from bench.bars import end
from bench.chart import draw
from bench.pages import machine, markdown, put
from bench.workloads import Workload, workloads
from tests.apache import ApacheKafka
from tests.node import ChronikNode
from tests.process import ServerProcess

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
Kinds = dict[str, Callable[[Path], ServerProcess]]
"""What is measured, the peer first."""
AIM_BEFORE = 0.95
"""How fast this tree must be beside an earlier one; what runs differ by is left to it."""
Figures = dict[str, dict[str, list[float]]]
"""Figure -> broker -> one value a round."""
TITLES = {"kafka": "Apache Kafka 4.1", "before": "chronik before"}
STATES = {
    "started": "on brokers that have just started",
    "warm": "on warm brokers",
    "synced": "on warm brokers, Apache Kafka syncs each write too",
    "relaxed": "on warm brokers, neither syncs before it acknowledges",
}
SYNCED: dict[str, Any] = {"log.flush.interval.messages": 1}
AIM_SYNCED = 2.0
"""How fast writes must be beside an Apache Kafka that keeps the same promise."""
RELAXED = {"flush.ms": "1000"}
AIM_RELAXED = 1.0
AIM_RELAXED_MEDIAN = 1.3
"""The same where both promise less: each load, and the median of all."""

START = "start to first produce, s"
RSS_IDLE = "memory when idle, MB"
RSS_AFTER = "memory after each group of loads, MB"
CPU = "broker CPU of each group of loads, s"
STOP = "stop, s"


def kinds_of(before: Path | None) -> Kinds:
    if before is None:
        return {"kafka": ApacheKafka, "chronik": ChronikNode}
    source = before / "src"
    if not (source / "chronik").is_dir():
        raise SystemExit(f"{before} is no source tree of chronik: there is no {source / 'chronik'}.")
    return {
        "before": partial(ChronikNode, env={"PYTHONPATH": str(source.resolve())}),
        "chronik": ChronikNode,
    }


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


def measure_starts(kinds: Kinds, rounds: int, figures: Figures, progress: Progress) -> None:
    """From nothing to the first acknowledged record, and what an idle broker needs."""
    task = progress.add_task("starting and stopping", total=rounds * len(kinds))
    for number in range(rounds):
        for name in in_turn(list(kinds), number):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                broker = kinds[name](Path(folder))
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
    kinds: Kinds, loads: list[Workload], rounds: int, figures: Figures, progress: Progress
) -> None:
    measure_starts(kinds, rounds, figures, progress)
    task = progress.add_task("workloads", total=rounds * len(loads) * len(kinds))
    for number in range(rounds):
        for group in grouped(loads):
            measure_group(kinds, group, range(number, number + 1), figures, progress, task)


def measure_warm(
    kinds: Kinds, loads: list[Workload], rounds: int, figures: Figures, progress: Progress
) -> None:
    task = progress.add_task("workloads", total=(rounds + 1) * len(loads) * len(kinds))
    measure_group(kinds, loads, range(rounds + 1), figures, progress, task)
    for load in loads:
        for values in figures[load.name].values():
            del values[0]


def measure_synced(
    kinds: Kinds, loads: list[Workload], rounds: int, figures: Figures, progress: Progress
) -> None:
    syncing = {name: partial(kind, **SYNCED) if kind is ApacheKafka else kind for name, kind in kinds.items()}
    measure_warm(syncing, loads, rounds, figures, progress)


class RelaxedNode(ChronikNode):
    """One whose topics, all made before the loads, acknowledge writes before they are synced."""

    def __init__(self, topics: Iterable[str], folder: Path) -> None:
        super().__init__(folder)
        self._topics = tuple(topics)

    def start(self, *, timeout_s: float = 60) -> float:
        seconds = super().start(timeout_s=timeout_s)
        make_relaxed(self._topics, {"bootstrap.servers": self.bootstrap})
        return seconds


def make_relaxed(topics: Iterable[str], client: dict[str, Any]) -> None:
    admin = AdminClient(client)
    wanted = [NewTopic(name, 1, 1, config=RELAXED) for name in topics]
    for made in admin.create_topics(wanted).values():
        made.result(30)


def measure_relaxed(
    kinds: Kinds, loads: list[Workload], rounds: int, figures: Figures, progress: Progress
) -> None:
    topics = dict.fromkeys(f"{load.topic}-{number}" for load in loads for number in range(rounds + 1))
    ours = partial(RelaxedNode, topics)
    relaxed: Kinds = {name: ours if kind is ChronikNode else kind for name, kind in kinds.items()}
    measure_warm(relaxed, loads, rounds, figures, progress)


MEASURES = {
    "started": measure_started,
    "warm": measure_warm,
    "synced": measure_synced,
    "relaxed": measure_relaxed,
}


def aim_of(load: Workload, state: str) -> float:
    if state == "relaxed":
        return AIM_RELAXED
    return AIM_SYNCED if state == "synced" and not load.reads else load.target


def grouped(loads: list[Workload]) -> list[list[Workload]]:
    """Those that share a topic, in their order."""
    groups: dict[str, list[Workload]] = defaultdict(list)
    for load in loads:
        groups[load.topic].append(load)
    return list(groups.values())


def measure_group(
    kinds: Kinds,
    loads: list[Workload],
    numbers: range,
    figures: Figures,
    progress: Progress,
    task: TaskID,
) -> None:
    """These rounds of these workloads, on brokers of their own, and what those needed for them."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as running:
        brokers = {name: kind(Path(folder) / name) for name, kind in kinds.items()}
        for broker in brokers.values():
            running.enter_context(broker)
        for number in numbers:
            for load in loads:
                for name in in_turn(list(kinds), number):
                    progress.update(task, description=f"{name}: {load.name}")
                    figures[load.name][name].append(load.run(brokers[name], number))
                    progress.advance(task)
        for name, broker in brokers.items():
            figures[RSS_AFTER][name].append(broker.rss_bytes() / 1e6)
            figures[CPU][name].append(broker.cpu_seconds())


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(states: dict[str, Figures], loads: list[Workload], peer: str) -> Table:
    out = Table(title=f"chronik beside {TITLES[peer]}")
    out.add_column("figure")
    for heading in (TITLES[peer], "chronik", "ratio", "spread", "aim"):
        out.add_column(heading, justify="right")
    for state, figures in states.items():
        aims = {load.name: aim_of(load, state) for load in loads}
        out.add_section()
        out.add_row(STATES[state], style="bold")
        for figure, values in figures.items():
            out.add_row(*row(figure, values, aims.get(figure), peer))
    return out


def page(states: dict[str, Figures], loads: list[Workload], peer: str, rounds: int) -> str:
    """The table for docs/PERFORMANCE.md. Ratios that miss their aim are marked."""
    rows = []
    for state, figures in states.items():
        aims = {load.name: aim_of(load, state) for load in loads}
        rows.append([f"**{STATES[state]}**", *[""] * 5])
        for figure, values in figures.items():
            cells = row(figure, values, aims.get(figure), peer)
            rows.append([re.sub(r"\[red\](.*)\[/\]", r"**\1** ✗", cell) for cell in cells])
    cleaned = [[re.sub(r"\[/?\w*\]", "", cell) for cell in cells] for cells in rows]
    headings = ["figure", TITLES[peer], "chronik", "ratio", "spread", "aim"]
    told = (
        f"Medians of {rounds} pairs, measured by `make bench-short` on {machine()}; "
        "✗ marks what misses its aim."
    )
    return f"\n{told}\n\n{markdown(headings, cleaned)}\n![Ratios of the loads](bench.svg)\n\n"


def pairs_of(values: dict[str, list[float]], peer: str) -> list[float]:
    """Ours over theirs, round by round."""
    return [ours / theirs for theirs, ours in zip(values[peer], values["chronik"], strict=False)]


def row(figure: str, values: dict[str, list[float]], aim: float | None, peer: str) -> list[str]:
    medians = [shown(statistics.median(values[name])) if values[name] else "" for name in (peer, "chronik")]
    pairs = pairs_of(values, peer)
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


def missed(states: dict[str, Figures], loads: list[Workload], peer: str) -> list[str]:
    """Loads whose median ratio is below what is aimed at, or that gave no pair of figures."""
    out = []
    for state, figures in states.items():
        for load in loads:
            ratios = pairs_of(figures[load.name], peer)
            if not ratios:
                out.append(f"{load.name}, {STATES[state]}: no pair of figures")
            elif (ratio := statistics.median(ratios)) < aim_of(load, state):
                out.append(f"{load.name}, {STATES[state]}: {ratio:.2f}, not {aim_of(load, state)}")
    if "relaxed" in states:
        figures = states["relaxed"]
        medians = [
            statistics.median(pairs) for load in loads if (pairs := pairs_of(figures[load.name], peer))
        ]
        if medians and (found := statistics.median(medians)) < AIM_RELAXED_MEDIAN:
            out.append(f"median of all, {STATES['relaxed']}: {found:.2f}, not {AIM_RELAXED_MEDIAN}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the records")
    parser.add_argument("--rounds", type=int, help="how often everything is measured (5)")
    parser.add_argument("--scale", type=float, help="share of the full number of records (1.0)")
    parser.add_argument("--state", choices=tuple(STATES), help="measure brokers in one state alone")
    parser.add_argument("--only", choices=("kafka", "chronik"), help="measure one broker alone")
    parser.add_argument("--before", type=Path, help="a source tree of chronik in Apache Kafka's place")
    parser.add_argument("--load", default="", help="only the workloads whose name contains this")
    parser.add_argument("--write", action="store_true", help="put table and chart into docs/")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    loads = chosen(workloads(options.scale or (0.1 if options.quick else 1.0)), options.load)
    kinds = kinds_of(options.before)
    peer = next(iter(kinds))
    if options.before:
        loads = [replace(load, target=AIM_BEFORE) for load in loads]
    if options.only:
        kinds = {options.only: kinds[options.only]}
    states: dict[str, Figures] = {
        state: defaultdict(lambda: defaultdict(list))
        for state in MEASURES
        if options.state in (None, state) and not (options.before and state in ("synced", "relaxed"))
    }
    console = Console()
    with Progress(console=console, transient=True) as progress:
        for state, figures in states.items():
            MEASURES[state](kinds, loads, rounds, figures, progress)
    console.print(table(states, loads, peer))
    RESULTS.mkdir(exist_ok=True)
    results = RESULTS / ("before.json" if options.before else "compare.json")
    results.write_text(json.dumps(states, indent=2) + "\n")
    if options.write and not (options.only or options.before):
        put(DOCS / "PERFORMANCE.md", "bench", page(states, loads, peer, rounds))
        draw(states, DOCS / "bench.svg")
    return end(console, [] if options.only else missed(states, loads, peer))


if __name__ == "__main__":
    sys.exit(main())
