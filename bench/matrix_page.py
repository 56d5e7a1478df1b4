"""The tables and the chart of the matrix. Every cell is there: one that nobody measured says so."""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from bench.compare import shown
from bench.matrix_brokers import STATES
from bench.matrix_cells import NODES, Cell, aim_of, is_rate
from bench.matrix_results import Results, Row, key
from bench.pages import markdown

DOCS: Final = Path(__file__).parents[1] / "docs"
COLOURS: Final = ("#2a78d6", "#eda100", "#3a9d5d", "#8c5bc0")
NOT_MEASURED: Final = "not measured"

EXPLAINED: Final = (
    (
        "bulk *|records/s",
        "Bulk (decision 0087): of a node's samples under `perf`, requests of 64 KB, 56 % are in the kernel "
        "(copies between sockets, pages and files; waiting for the disk), 32 % in the interpreter, 2 % in "
        "the checksum. The sync is the larger part of the time; without it a node is 1.7 times as fast.",
    ),
    (
        "one record per request*|records/s",
        "One record per request: 48 % of the samples are in the interpreter, 43 % in the kernel; a request "
        "costs 92 µs of processor time, of which those under way together share the part of the disk alone.",
    ),
)
"""By globs of cell and figure: what the profile says of a miss."""


def is_reached(aim: tuple[str, float], ratio: float) -> bool:
    sign, limit = aim
    return ratio >= limit if sign == ">=" else ratio <= limit


def rows_of(results: Results, cells: Sequence[Cell]) -> Iterator[tuple[int, str, Cell, str, Row | None]]:
    """Every figure that there should be: nodes, state, cell, figure, and what was measured."""
    for nodes in NODES:
        for cell in cells:
            for figure in cell.figures:
                for state in cell.states:
                    yield nodes, state, cell, figure, results.rows.get(key(nodes, state, cell.name, figure))


def missed(results: Results, cells: Sequence[Cell]) -> list[tuple[tuple[str, str], str]]:
    """Measured figures that miss their aim, with cell and state in front."""
    out = []
    for nodes, state, cell, figure, row in rows_of(results, cells):
        aim = aim_of(cell.name, figure, state)
        if (
            row is not None
            and aim is not None
            and (ratio := row.ratio) is not None
            and not is_reached(aim, ratio)
        ):
            line = f"{cell.name}, {figure}, {state}, {nodes} nodes: {ratio:.2f}, not {aim[0]} {aim[1]}"
            out.append(((cell.name, state), line))
    return out


def told(cell: Cell, figure: str, state: str, row: Row | None) -> str:
    if row is None or row.ratio is None:
        return NOT_MEASURED
    theirs, own = row.medians
    ratio = f"{row.ratio:.2f}"
    aim = aim_of(cell.name, figure, state)
    if aim is not None and not is_reached(aim, row.ratio):
        ratio = f"**{ratio}** ✗"
    spread = f" ({min(row.ratios):.2f} to {max(row.ratios):.2f})" if len(row.ratios) > 1 else ""
    return f"{shown(theirs)} / {shown(own)} = {ratio}{spread}"


def table(nodes: int, results: Results, cells: Sequence[Cell]) -> str:
    lines = []
    for cell in cells:
        for figure in cell.figures:
            line = [f"{cell.name}, {figure}"]
            for state in STATES:
                row = results.rows.get(key(nodes, state, cell.name, figure))
                line.append(told(cell, figure, state, row) if state in cell.states else "")
            lines.append(line)
    return markdown(["Apache Kafka / chronik = ratio", *(one.title for one in STATES.values())], lines)


def summary(results: Results, cells: Sequence[Cell]) -> str:
    """For each state: how many cells there are, were measured, reach their aim; the median of the rates."""
    lines = []
    for nodes in NODES:
        for name, state in STATES.items():
            all_ = [one for one in rows_of(results, cells) if one[0] == nodes and one[1] == name]
            aims = [
                (aim, row.ratio)
                for _, _, cell, figure, row in all_
                if (aim := aim_of(cell.name, figure, name)) and row is not None and row.ratio is not None
            ]
            rates = [
                row.ratio
                for _, _, _, figure, row in all_
                if is_rate(figure) and row is not None and row.ratio is not None
            ]
            reached = sum(is_reached(aim, ratio) for aim, ratio in aims)
            median = f"{statistics.median(rates):.2f}" if rates else ""
            wanted = "" if state.rate_median is None else f">= {state.rate_median}"
            absent = sum(row is None for *_, row in all_)
            lines.append(
                [
                    f"{nodes}, {state.title}",
                    str(len(all_)),
                    str(absent),
                    f"{reached} of {len(aims)}",
                    median,
                    wanted,
                ]
            )
    headings = ["nodes, state", "figures", NOT_MEASURED, "aims reached", "median of rates", "aim"]
    return markdown(headings, lines)


def explanations(results: Results, cells: Sequence[Cell]) -> str:
    """A line for each kind of miss, and the names of those that no profile explains yet."""
    found: dict[str, None] = {}
    unexplained: dict[str, None] = {}
    for nodes, state, cell, figure, row in rows_of(results, cells):
        aim = aim_of(cell.name, figure, state)
        if row is None or aim is None or row.ratio is None or is_reached(aim, row.ratio):
            continue
        fits = [why for glob, why in EXPLAINED if fnmatch.fnmatchcase(f"{cell.name}|{figure}", glob)]
        if fits:
            found[fits[0]] = None
        else:
            unexplained[f"{cell.name}, {figure} ({state}, {nodes})"] = None
    lines = [f"- {why}\n" for why in found]
    if unexplained:
        lines.append(f"- Without a profile yet: {'; '.join(unexplained)}.\n")
    return "".join(lines)


def page(results: Results, cells: Sequence[Cell]) -> str:
    origins = sorted({(row.machine, row.date) for row in results.rows.values()})
    commands = sorted({row.command for row in results.rows.values()})
    where = "; ".join(f"{machine}, {date}" for machine, date in origins) or "nowhere yet"
    parts = [
        f"\nMeasured on {where}, by `make bench` (`{'`, `'.join(commands)}`). Medians of pairs, with the "
        "smallest and the largest ratio; ✗ marks what misses its aim. Of latencies, memory and times less is "
        "better.\n\n",
        summary(results, cells),
        "\n![Ratios of the rates](bench-matrix.svg)\n",
    ]
    for nodes in NODES:
        parts.append(f"\n**{nodes} {'node' if nodes == 1 else 'nodes'}**\n\n{table(nodes, results, cells)}")
    why = explanations(results, cells)
    if why:
        parts.append(f"\nWhy some fall short:\n\n{why}")
    return "".join(parts) + "\n"


def chart(results: Results, cells: Sequence[Cell], target: Path) -> None:
    """A line for each rate: a dot a state, with the spread of its pairs; a panel for each number of nodes."""
    mpl.rcParams.update({"svg.hashsalt": "chronik", "svg.fonttype": "none", "font.family": "sans-serif"})
    names = [(cell, figure) for cell in cells for figure in cell.figures if is_rate(figure)]
    figure_, panels = plt.subplots(
        1, len(NODES), figsize=(13, 0.28 * len(names) + 1.6), layout="constrained", sharey=True
    )
    for axes, nodes in zip(panels, NODES, strict=True):
        for place, (state, told_) in enumerate(STATES.items()):
            colour = COLOURS[place % len(COLOURS)]
            for line, (cell, figure) in enumerate(names):
                row = results.rows.get(key(nodes, state, cell.name, figure))
                if row is None or row.ratio is None:
                    continue
                at = line + (place - (len(STATES) - 1) / 2) * 0.2
                axes.plot((min(row.ratios), max(row.ratios)), (at, at), color=colour, linewidth=1)
                axes.plot(row.ratio, at, "o", color=colour, markersize=4)
            axes.plot([], [], "o", color=colour, label=told_.title)
        axes.axvline(1, color="black", linestyle="--", linewidth=1)
        axes.set(
            xscale="log",
            title=f"{nodes} {'node' if nodes == 1 else 'nodes'}",
            xlabel="chronik ÷ Apache Kafka 4.1",
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(names)), [cell.name for cell, _ in names], fontsize=8)
    panels[0].invert_yaxis()
    legend = panels[0].get_legend_handles_labels()
    figure_.legend(*legend, frameon=False, loc="outside lower center", ncols=len(STATES), fontsize=9)
    figure_.savefig(target, metadata={"Date": None})
    plt.close(figure_)
