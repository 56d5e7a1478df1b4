"""Plots and reports as one HTML file: plain SVG, no script, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 860
BAR_HEIGHT: Final = 22
CHART_HEIGHT: Final = 240
MARGIN: Final = 60
COLORS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568", "#975a16", "#285e61")
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #e2e8f0; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.good { color: #276749 } .bad { color: #c53030 }
svg text { font: 12px system-ui, sans-serif; fill: #2d3748 }
"""


def page(title: str, body: Sequence[str]) -> str:
    parts = "\n".join(body)
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


def bars(title: str, values: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars: label, value and a color name each."""
    largest = max((value for _, value, _ in values), default=0) or 1
    height = BAR_HEIGHT * len(values) + 10
    parts = [
        f"<h2>{escape(title)}</h2>",
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
    ]
    for number, (label, value, color) in enumerate(values):
        y = number * BAR_HEIGHT + 5
        width = (WIDTH - 360) * value / largest
        parts.append(f'<text x="0" y="{y + 14}">{escape(label[:36])}</text>')
        parts.append(
            f'<rect x="250" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT - 6}" fill="{color}"></rect>'
        )
        parts.append(f'<text x="{256 + width:.1f}" y="{y + 14}">{value:,.0f}</text>')
    return "".join(parts) + "</svg>"


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], labels: Sequence[str]) -> str:
    """Lines over a common x axis; `labels` stand at its ends."""
    points = [point for line in series.values() for point in line]
    if not points:
        return f"<h2>{escape(title)}</h2><p>There is nothing to show.</p>"
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = max(y for _, y in points) or 1

    def place(x: float, y: float) -> str:
        across = (x - low) / (high - low) if high > low else 0.5
        down = CHART_HEIGHT - 30 - y / top * (CHART_HEIGHT - 60)
        return f"{MARGIN + across * (WIDTH - 2 * MARGIN):.1f},{down:.1f}"

    parts = [
        f'<h2>{escape(title)}</h2><svg viewBox="0 0 {WIDTH} {CHART_HEIGHT + 20 * len(series)}" role="img" '
        f'aria-label="{escape(title)}">',
        f'<path d="M{MARGIN},{30} V{CHART_HEIGHT - 30} H{WIDTH - MARGIN}" fill="none" stroke="#a0aec0"/>',
        f'<text x="0" y="34">{top:,.0f}</text>',
    ]
    for number, label in enumerate(labels[:2]):
        anchor = "start" if number == 0 else "end"
        x = MARGIN if number == 0 else WIDTH - MARGIN
        parts.append(f'<text x="{x}" y="{CHART_HEIGHT - 10}" text-anchor="{anchor}">{escape(label)}</text>')
    for number, (name, line) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(place(x, y) for x, y in sorted(line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += (
            f'<circle cx="{p.partition(",")[0]}" cy="{p.partition(",")[2]}" r="2.5" fill="{color}"/>'
            for p in path.split(" ")
        )
        y = CHART_HEIGHT + 14 + 20 * number
        parts.append(f'<rect x="{MARGIN}" y="{y - 10}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{MARGIN + 18}" y="{y}">{escape(name)}</text>')
    return "".join(parts) + "</svg>"
