"""Apache Kafka 4.1 and chronik, by turns, on this machine, in one run (`make bench`).

Apache Kafka runs with its defaults, which do not sync; chronik runs with its defaults, which do. Each round
starts both brokers anew with empty directories, in alternating order; the table shows medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import confluent_kafka
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.workloads import Workload, workloads
from tests.apache import ApacheKafka
from tests.node import ChronikNode
from tests.process import ServerProcess

RESULTS = Path(__file__).parent / "results"
KINDS: dict[str, type[ApacheKafka] | type[ChronikNode]] = {"kafka": ApacheKafka, "chronik": ChronikNode}
Figures = dict[str, dict[str, list[float]]]
"""Figure -> broker -> one value a round."""

START = "start to first produce, s"
RSS_IDLE = "memory when idle, MB"
RSS_AFTER = "memory after the load, MB"
CPU = "broker CPU, s"
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


def measure(name: str, loads: list[Workload], figures: Figures, progress: Progress) -> None:
    """One round of one broker."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        broker = KINDS[name](Path(folder))
        try:
            broker.prepare()
            began = time.monotonic()
            broker.start()
            first_produce(broker)
            figures[START][name].append(time.monotonic() - began)
            figures[RSS_IDLE][name].append(broker.rss_bytes() / 1e6)
            for load in loads:
                task = progress.add_task(f"{broker.name}: {load.name}", total=None)
                figures[load.name][name].append(load.run(broker))
                progress.remove_task(task)
            figures[RSS_AFTER][name].append(broker.rss_bytes() / 1e6)
            figures[CPU][name].append(broker.cpu_seconds())
            figures[STOP][name].append(broker.stop(timeout_s=60))
        finally:
            broker.kill()


def table(figures: Figures, loads: list[Workload]) -> Table:
    out = Table(title="chronik beside Apache Kafka 4.1")
    out.add_column("figure")
    for heading in ("Apache Kafka", "chronik", "ratio", "aim"):
        out.add_column(heading, justify="right")
    aims = {load.name: load.target for load in loads}
    for figure, values in figures.items():
        middle = {name: statistics.median(found) for name, found in values.items() if found}
        shown = [
            f"{middle[name]:,.{0 if middle[name] >= 100 else 2}f}" if name in middle else "" for name in KINDS
        ]
        ratio = middle["chronik"] / middle["kafka"] if len(middle) == len(KINDS) and middle["kafka"] else None
        aim = aims.get(figure)
        style = "" if ratio is None or aim is None else "green" if ratio >= aim else "red"
        out.add_row(
            figure + (", records/s" if aim else ""),
            *shown,
            "" if ratio is None else f"{ratio:.2f}",
            f">= {aim}" if aim else "",
            style=style,
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the records")
    parser.add_argument("--rounds", type=int, help="how often each broker is measured (3)")
    parser.add_argument("--scale", type=float, help="share of the full number of records (1.0)")
    parser.add_argument("--only", choices=tuple(KINDS), help="measure one broker alone")
    parser.add_argument("--load", default="", help="only the workloads whose name contains this")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 3)
    loads = workloads(options.scale or (0.1 if options.quick else 1.0))
    loads = [load for load in loads if options.load in load.name]
    names = [options.only] if options.only else list(KINDS)

    figures: Figures = defaultdict(lambda: defaultdict(list))
    console = Console()
    with Progress(console=console, transient=True) as progress:
        overall = progress.add_task("rounds", total=rounds * len(names))
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                measure(name, loads, figures, progress)
                progress.advance(overall)
    console.print(table(figures, loads))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "compare.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
