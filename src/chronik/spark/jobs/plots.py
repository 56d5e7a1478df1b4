"""Reports: one HTML file with everything in it (plain SVG, no script), and each plot as a PNG beside it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

WIDTH_INCHES: Final = 9.0
BAR_INCHES: Final = 0.28
LINES_INCHES: Final = 3.6
DPI: Final = 144
BARS_MAX: Final = 40
COLORS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568", "#975a16", "#285e61")
Part: TypeAlias = str | Figure
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #e2e8f0; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.good { color: #276749 } .bad { color: #c53030 }
svg { width: 100%; height: auto }
"""


def write_report(path: Path, title: str, body: Sequence[Part]) -> list[Path]:
    """The page at `path`, and each plot as a PNG beside it; returns all that was written."""
    path.write_text(page(title, body))
    figures = [part for part in body if isinstance(part, Figure)]
    images = [path.with_name(f"{path.stem}-{_slug(figure)}.png") for figure in figures]
    for figure, image in zip(figures, images, strict=True):
        figure.savefig(image, dpi=DPI)
    return [path, *images]


def _title(figure: Figure) -> str:
    return str(figure.axes[0].get_title(loc="left"))


def _slug(figure: Figure) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _title(figure).lower()).strip("-")


def _svg(figure: Figure) -> str:
    """For a page: text stays text, and the same figure is the same text."""
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": _slug(figure)}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    label = escape(_title(figure), quote=True)
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def page(title: str, body: Sequence[Part]) -> str:
    parts = "\n".join(part if isinstance(part, str) else _svg(part) for part in body)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{parts}\n</body></html>\n"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; headings that start with '#' are numbers and stand right."""
    numeric = [heading.startswith("#") for heading in headings]

    def cells(tag: str, values: Sequence[object]) -> str:
        made = []
        for value, right in zip(values, numeric, strict=True):
            shown = f"{value:,}" if isinstance(value, int) else str(value)
            made.append(f"<{tag}{' class=n' if right else ''}>{escape(shown)}</{tag}>")
        return "<tr>" + "".join(made) + "</tr>"

    head = cells("th", [heading.removeprefix("#") for heading in headings])
    return f"<table>{head}{''.join(cells('td', row) for row in rows)}</table>"


def _axes(title: str, height_inches: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def bars(title: str, unit: str, values: Sequence[tuple[str, float, str]]) -> Figure:
    """Horizontal bars: label, value and color each. The first `BARS_MAX`, and the title says of how many."""
    shown = values[:BARS_MAX]
    if len(shown) < len(values):
        title += f" ({len(shown)} of {len(values):,})"
    figure, axes = _axes(title, 1.1 + BAR_INCHES * max(1, len(shown)))
    places = range(len(shown))
    drawn = axes.barh(places, [value for _, value, _ in shown], color=[color for *_, color in shown])
    is_whole = all(float(value).is_integer() for _, value, _ in shown)
    axes.bar_label(drawn, fmt="{:,.0f}" if is_whole else "{:,.2f}", padding=3, fontsize="small")
    axes.set_yticks(places, [label for label, *_ in shown])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_xlim(0, 1.12 * max((value for _, value, _ in shown), default=0) or 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=is_whole))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if is_whole else "{x:,g}"))
    axes.grid(axis="x", alpha=0.3)
    return figure


def lines(title: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Lines over time: points are seconds since 1970 and a value."""
    figure, axes = _axes(title, LINES_INCHES)
    for number, (name, points) in enumerate(series.items()):
        times = [datetime.fromtimestamp(second, UTC) for second, _ in sorted(points)]
        values = [value for _, value in sorted(points)]
        color = COLORS[number % len(COLORS)]
        axes.plot(times, values, marker="o", markersize=3, label=name, color=color)  # type: ignore[arg-type]
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    axes.set_xlabel("time (UTC)")
    is_whole = all(float(value).is_integer() for points in series.values() for _, value in points)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=is_whole))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if is_whole else "{x:,g}"))
    axes.grid(alpha=0.3)
    if series:
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    else:
        axes.text(0.5, 0.5, "no records", ha="center", va="center", transform=axes.transAxes)
        axes.set_xticks([])
    return figure
