"""Apache Kafka 4.1 and chronik, by turns, in every cell of the matrix (`make bench`).

A cell is one load on one node or three, in one state (`bench.matrix_cells`, `bench.matrix_brokers`). Both
kinds of broker are up, one is driven at a time, in alternating order; the ratio is the median of the pairs'.
The whole matrix takes hours, so parts can be run: `--cells`, `--states` take globs, `--nodes` a number. What
a run measures goes into one results file, in place of what was there for the same cells; `--write` makes the
table and the chart out of all of that file, and names every cell that it does not have.

    make bench ARGS="--states warm --cells 'bulk 256 B*' --nodes 1 --rounds 5"
    make bench ARGS="--list"
    make bench ARGS="--write --cells ''"
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fnmatch
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.bars import end
from bench.matrix_brokers import KINDS, STATES, Side
from bench.matrix_cells import NODES, Cell, cells
from bench.matrix_page import DOCS, chart, missed, page
from bench.matrix_results import FILE, Results, key
from bench.pages import machine, put

MATRIX: Final = "matrix"


class Runner:
    def __init__(self, results: Results, rounds: int, console: Console) -> None:
        self._results = results
        self._rounds = rounds
        self._console = console
        self._number = 0
        self.failed: list[str] = []

    def state(self, state: str, nodes: int, chosen: Sequence[Cell]) -> None:
        if not STATES[state].is_warm:
            for number in range(self._rounds):
                for cell in chosen:
                    with self._brokers(state, nodes, start=not cell.starts) as sides:
                        self._pair(cell, state, nodes, sides, number, counts=True)
            return
        with self._brokers(state, nodes, start=True) as sides:
            for number in range(self._rounds + 1):
                for cell in chosen:
                    self._pair(cell, state, nodes, sides, number, counts=number > 0)

    @contextlib.contextmanager
    def _brokers(self, state: str, nodes: int, *, start: bool) -> Iterator[list[Side]]:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as closing:
            sides = []
            for kind in KINDS:
                side = Side(kind, nodes, Path(folder) / kind, STATES[state].topic_configs.get(kind))
                closing.callback(side.close)
                side.prepare()
                if start:
                    side.start()
                    side.configure(STATES[state].configs.get(kind, {}))
                sides.append(side)
            yield sides

    def _pair(
        self, cell: Cell, state: str, nodes: int, sides: list[Side], number: int, *, counts: bool
    ) -> None:
        """Once on each kind. What fails is named, and measured by nobody: it makes no pair."""
        self._number += 1
        found = {}
        began = time.monotonic()
        for side in sides if number % 2 == 0 else sides[::-1]:
            try:
                found[side.kind] = cell.run(side, f"cell-{self._number}")
            except Exception as error:  # a cell that fails must not cost the others
                self.failed.append(f"{cell.name}, {state}, {nodes} nodes, {side.kind}: {error!r}"[:300])
                return
        told = "; ".join(
            f"{figure} {found['kafka'][figure]:,.2f} / {found['chronik'][figure]:,.2f}"
            for figure in cell.figures
        )
        note = "" if counts else " (does not count)"
        elapsed = time.monotonic() - began
        self._console.print(f"[dim]{state}, {nodes}: {cell.name}{note}: {told} ({elapsed:.0f} s)[/dim]")
        if counts:
            for figure in cell.figures:
                pair = found["kafka"][figure], found["chronik"][figure]
                self._results.add(key(nodes, state, cell.name, figure), pair)
            self._results.save()


def chosen_cells(globs: str, found: Sequence[Cell]) -> list[Cell]:
    wanted = [one.strip() for one in globs.split("|") if one.strip()]
    return [cell for cell in found if any(fnmatch.fnmatchcase(cell.name, one) for one in wanted)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", default="*", help="globs of names, separated by |")
    parser.add_argument("--states", default="*", help="a glob")
    parser.add_argument("--nodes", type=int, choices=NODES, help="only on so many nodes")
    parser.add_argument("--rounds", type=int, help="pairs of each cell (3)")
    parser.add_argument("--scale", type=float, help="share of the full number of records (1.0)")
    parser.add_argument("--quick", action="store_true", help="one round, a twentieth of the records")
    parser.add_argument("--list", action="store_true", help="name the cells and states, measure nothing")
    parser.add_argument("--results", type=Path, default=FILE, help="the file that runs are merged into")
    parser.add_argument("--write", action="store_true", help="put table and chart of all results into docs/")
    options = parser.parse_args()
    console = Console()
    found = cells(options.scale or (0.05 if options.quick else 1.0))
    states = fnmatch.filter(STATES, options.states)
    chosen = chosen_cells(options.cells, found)
    if options.list:
        for cell in found:
            console.print(f"{cell.name}  [dim]({', '.join(cell.states)})[/dim]")
        return 0
    command = shlex.join(["python", "-m", "bench.matrix", *sys.argv[1:]])
    results = Results.load(options.results)
    results.begin(machine(), command, datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"))
    runner = Runner(results, options.rounds or (1 if options.quick else 3), console)
    for nodes in NODES if options.nodes is None else (options.nodes,):
        for state in states:
            of_state = [cell for cell in chosen if state in cell.states]
            if of_state:
                runner.state(state, nodes, of_state)
    if options.write:
        put(DOCS / "PERFORMANCE.md", MATRIX, page(results, found))
        chart(results, found, DOCS / "bench-matrix.svg")
    for failure in runner.failed:
        console.print(f"[red]failed: {failure}[/red]")
    touched = {(cell.name, state) for cell in chosen for state in states}
    return end(console, [line for at, line in missed(results, found) if at in touched]) or int(
        bool(runner.failed)
    )


if __name__ == "__main__":
    sys.exit(main())
