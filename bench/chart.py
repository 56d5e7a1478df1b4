"""The chart of the README, drawn by `make bench-short ARGS=--write`.

One bar for each load and state: chronik's records a second over Apache Kafka's, median of the pairs, with the
spread as a line. The dashed line is "as fast".
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

STATES = {
    "started": ("just started, Kafka by default does not sync", "#2a78d6"),
    "warm": ("warm, Kafka by default does not sync", "#eda100"),
    "synced": ("warm, both sync each write", "#3a9d5d"),
    "relaxed": ("warm, neither syncs before it acknowledges", "#8a5fbf"),
}
LOADS = ("produce", "one record per request", "consume")


def ratios(values: dict[str, list[float]]) -> list[float]:
    return [ours / theirs for theirs, ours in zip(values["kafka"], values["chronik"], strict=False)]


def draw(measured: Mapping[str, Mapping[str, dict[str, list[float]]]], target: Path) -> None:
    mpl.rcParams.update({"svg.hashsalt": "chronik", "svg.fonttype": "none", "font.family": "sans-serif"})
    names = [name for name in next(iter(measured.values())) if name.startswith(LOADS)]
    figure, axes = plt.subplots(figsize=(9, 0.62 * len(names) + 1.6), layout="constrained")
    height = 0.8 / len(measured)
    for number, (state, figures) in enumerate(measured.items()):
        label, colour = STATES[state]
        for row, name in enumerate(names):
            found = ratios(figures[name])
            middle = statistics.median(found)
            at = row + (number - (len(measured) - 1) / 2) * height
            axes.barh(at, middle, height * 0.9, color=colour, label=label if row == 0 else None)
            axes.plot((min(found), max(found)), (at, at), color="black", linewidth=1)
            axes.text(max(*found, middle) + 0.02, at, f"{middle:.2f}×", va="center", fontsize=9)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("records a second: chronik (synced) ÷ Apache Kafka 4.1")
    axes.set_title(f"chronik beside Apache Kafka, {os.cpu_count()} cores, {platform.machine()}", loc="left")
    figure.legend(frameon=False, loc="outside lower center", ncols=len(measured), fontsize=9)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def draw_curves(
    measured: Mapping[str, Mapping[str, Mapping[str, Mapping[int, list[float]]]]], target: Path
) -> None:
    """A panel for each figure, both axes by powers of ten."""
    mpl.rcParams.update({"svg.hashsalt": "chronik", "svg.fonttype": "none", "font.family": "sans-serif"})
    panels = [(name, figure, values) for name, costs in measured.items() for figure, values in costs.items()]
    columns = 3
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(11, 2.6 * lines), layout="constrained", squeeze=False
    )
    for axes, (name, title, by_broker) in zip(grid.flat, panels, strict=False):
        for broker, label, colour in (
            ("kafka", "Apache Kafka 4.1", "#888888"),
            ("chronik", "chronik", "#2a78d6"),
        ):
            values = by_broker.get(broker, {})
            sizes = sorted(values)
            axes.plot(
                sizes,
                [max(statistics.median(values[size]), 1e-3) for size in sizes],
                marker="o",
                color=colour,
                label=label,
            )
        axes.set(xscale="log", yscale="log", title=title, xlabel=name)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, alpha=0.3)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    grid.flat[0].legend(frameon=False)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def draw_soak(windows: Sequence[Sequence[float]], target: Path) -> None:
    """A line for each figure of the windows: p99, memory, descriptors."""
    mpl.rcParams.update({"svg.hashsalt": "chronik", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, panels = plt.subplots(1, 3, figsize=(11, 2.6), layout="constrained")
    titles = ("p99 of a record, ms", "memory, MB", "descriptors")
    for axes, title, values in zip(panels, titles, zip(*windows, strict=True), strict=True):
        axes.plot(range(1, len(values) + 1), values, color="#2a78d6")
        axes.set(title=title, xlabel="window", ylim=(0, max(values) * 1.2))
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)
