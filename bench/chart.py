"""Draws the chart of the README out of what `make bench` measured: `python -m bench.chart`.

One bar for each load and state: chronik's records a second over Apache Kafka's, median of the pairs, with the
spread as a line. The dashed line is "as fast".
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
STATES = {"started": ("just started", "#2a78d6"), "warm": ("warm", "#eda100")}
LOADS = ("produce", "one record per request", "consume")


def ratios(values: dict[str, list[float]]) -> list[float]:
    return [ours / theirs for theirs, ours in zip(values["kafka"], values["chronik"], strict=False)]


def draw(measured: dict[str, dict[str, dict[str, list[float]]]], target: Path) -> None:
    mpl.rcParams.update({"svg.hashsalt": "chronik", "svg.fonttype": "none", "font.family": "sans-serif"})
    names = [name for name in next(iter(measured.values())) if name.startswith(LOADS)]
    figure, axes = plt.subplots(figsize=(8, 0.62 * len(names) + 1.4), layout="constrained")
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
    axes.set_xlabel("records a second: chronik (synced) ÷ Apache Kafka 4.1 (its default, not synced)")
    axes.set_title(f"chronik beside Apache Kafka, {os.cpu_count()} cores, {platform.machine()}", loc="left")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results" / "compare.json")
    parser.add_argument("--target", type=Path, default=ROOT / "docs" / "bench.svg")
    options = parser.parse_args()
    draw(json.loads(options.results.read_text()), options.target)
    print(f"drew {options.target}")


if __name__ == "__main__":
    main()
