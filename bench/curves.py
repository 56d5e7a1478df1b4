"""How cost grows with size (N04): Apache Kafka 4.1 and chronik, one thing at a time (`make bench-curves`).

Each size has a broker of its own, by turns; every client is neutral (librdkafka, Apache Kafka's tools, plain
sockets). A figure whose cost grows faster than linearly is red, and then the exit code is 1. Growth is the
exponent between neighbouring sizes, so 0 is "does not grow", 1 is "in proportion".

`--curve` measures a part; what earlier runs measured of the others is kept beside it. `--write` puts the
tables of all that is there into docs/PERFORMANCE.md and draws docs/curves.svg.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import curve_loads
from bench.bars import end
from bench.chart import draw_curves
from bench.compare import DOCS, RESULTS, TITLES, in_turn, kinds_of, shown
from bench.pages import machine, markdown, put
from tests.process import ServerProcess

GROWTH_MAX: Final = 1.25
"""Steepest exponent between neighbouring sizes that still counts as linear (N04); a quarter is left to
noise."""
FLOORS: Final = {"s": 0.2, "ms": 1.0, "MB": 5.0}
"""By unit: what is below is no cost worth a verdict, and stands for this much when growth is told."""

Costs = dict[str, dict[str, dict[int, list[float]]]]
"""Figure -> broker -> size -> one value a round."""


class Curve(NamedTuple):
    name: str
    """What there is more and more of."""
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    measure: Callable[[ServerProcess, int], Mapping[str, float]]
    """Costs of this size by figure, each with its unit last. The broker has just started and has nothing."""


CURVES: Final = (
    Curve("partitions", (1, 10, 100, 1_000, 10_000), (1, 10, 100), curve_loads.partitions),
    Curve("idle connections", (1, 10, 100, 1_000), (1, 10, 100), curve_loads.connections),
    Curve("consumers of one log", (1, 4, 16, 64), (1, 4), curve_loads.consumers),
    Curve("members of a group", (1, 10, 100, 500), (1, 5), curve_loads.members),
    Curve("MB of log, stopped in order", (100, 400, 1_600), (10, 40), curve_loads.log_size),
    Curve("MB of log, killed with -9", (100, 400, 1_600), (10, 40), curve_loads.unflushed),
)


def growth(costs: Mapping[int, float], floor: float) -> float:
    """The steepest exponent between neighbouring sizes."""
    points = [(size, max(cost, floor)) for size, cost in sorted(costs.items())]
    return max(
        math.log(cost / before) / math.log(size / smaller)
        for (smaller, before), (size, cost) in itertools.pairwise(points)
    )


def growth_of(figure: str, values: Mapping[int, Sequence[float]]) -> float:
    unit = figure.rsplit(", ", 1)[1]
    return growth({size: statistics.median(found) for size, found in values.items()}, FLOORS[unit])


def steep(curve: str, costs: Costs) -> list[str]:
    """Figures of chronik that grow faster than what they are a cost of, or that nobody measured."""
    out = []
    for figure, by_broker in costs.items():
        own = by_broker.get("chronik", {})
        if len(own) < 2:
            out.append(f"{figure}, by {curve}: measured at {len(own)} sizes, which is no curve")
        elif (found := growth_of(figure, own)) > GROWTH_MAX:
            out.append(f"{figure}, by {curve}: grows with exponent {found:.2f}, more than {GROWTH_MAX}")
    return out


def sizes_of(costs: Costs) -> list[int]:
    return sorted({size for by_broker in costs.values() for values in by_broker.values() for size in values})


def rows(costs: Costs) -> list[list[str]]:
    """For each figure a line a broker: its medians by size, and its growth. A size that one broker was not
    measured at has its cell all the same."""
    sizes = sizes_of(costs)
    out = []
    for figure, by_broker in costs.items():
        for broker, values in by_broker.items():
            medians = [shown(statistics.median(values[size])) if size in values else "–" for size in sizes]
            found = growth_of(figure, values) if len(values) > 1 else None
            told = "–" if found is None else f"{found:.2f}"
            if broker == "chronik" and found is not None and found > GROWTH_MAX:
                told = f"[red]{told}[/]"
            out.append([figure, TITLES.get(broker, broker), *medians, told])
    return out


def headings(costs: Costs) -> list[str]:
    return ["figure", "broker", *(f"{size:,}" for size in sizes_of(costs)), "growth"]


def table(curve: str, costs: Costs) -> Table:
    out = Table(title=f"cost by {curve}")
    for number, heading in enumerate(headings(costs)):
        out.add_column(heading, justify="left" if number < 2 else "right")
    for row in rows(costs):
        out.add_row(*row)
    return out


def page(measured: Mapping[str, Costs], rounds: int) -> str:
    """Every curve has its place: one without figures says so."""
    told = (
        f"Medians of {rounds} {'rounds' if rounds > 1 else 'round'}, measured by `make bench-curves` on "
        f"{machine()}. Growth is the steepest exponent between neighbouring sizes: 1 is in proportion; "
        f"what is above {GROWTH_MAX} is marked ✗. –: not measured.\n\n![Cost by size](curves.svg)"
    )
    parts = [f"\n{told if measured else 'Not measured on a quiet machine yet.'}\n"]
    for curve in CURVES:
        parts.append(f"\n**By {curve.name}**\n\n")
        if costs := measured.get(curve.name):
            marked = [[re.sub(r"\[red\](.*)\[/\]", r"**\1** ✗", cell) for cell in row] for row in rows(costs)]
            parts.append(markdown(headings(costs), marked))
        else:
            parts.append(f"Not measured yet at {', '.join(f'{size:,}' for size in curve.sizes)}.\n")
    return "".join(parts) + "\n"


def measure(curves: Sequence[Curve], rounds: int, *, is_quick: bool, progress: Progress) -> dict[str, Costs]:
    kinds = kinds_of(None)
    sizes = {curve.name: curve.quick if is_quick else curve.sizes for curve in curves}
    task = progress.add_task("curves", total=rounds * len(kinds) * sum(map(len, sizes.values())))
    out: dict[str, Costs] = {}
    for curve in curves:
        costs: Costs = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for number in range(rounds):
            for size in sizes[curve.name]:
                for name in in_turn(list(kinds), number):
                    progress.update(task, description=f"{name}: {size:,} {curve.name}")
                    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                        broker = kinds[name](Path(folder) / name)
                        with broker:
                            for figure, value in curve.measure(broker, size).items():
                                costs[figure][name][size].append(value)
                    progress.advance(task)
        out[curve.name] = costs
    return out


def merged(results: Path, measured: dict[str, Costs]) -> dict[str, Costs]:
    """What this run measured, and of the other curves what an earlier one left."""
    before = json.loads(results.read_text()) if results.exists() else {}
    return {
        curve.name: measured[curve.name] if curve.name in measured else _sized(before[curve.name])
        for curve in CURVES
        if curve.name in measured or curve.name in before
    }


def _sized(costs: dict[str, dict[str, dict[str, list[float]]]]) -> Costs:
    """JSON has no numbers for keys."""
    return {
        figure: {
            broker: {int(size): found for size, found in values.items()}
            for broker, values in by_broker.items()
        }
        for figure, by_broker in costs.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--curve", default="", help="only those whose name contains this")
    parser.add_argument("--write", action="store_true", help="put tables and chart into docs/")
    options = parser.parse_args()
    console = Console()
    chosen = [curve for curve in CURVES if options.curve in curve.name]
    with Progress(console=console, transient=True) as progress:
        measured = measure(chosen, options.rounds, is_quick=options.quick, progress=progress)
    missed = []
    for curve, costs in measured.items():
        console.print(table(curve, costs))
        missed += steep(curve, costs)
    RESULTS.mkdir(exist_ok=True)
    results = RESULTS / ("curves-quick.json" if options.quick else "curves.json")
    measured = merged(results, measured)
    results.write_text(json.dumps(measured, indent=2) + "\n")
    if options.write:
        put(DOCS / "PERFORMANCE.md", "curves", page(measured, options.rounds))
        draw_curves(measured, DOCS / "curves.svg")
    return end(console, missed)


if __name__ == "__main__":
    sys.exit(main())
