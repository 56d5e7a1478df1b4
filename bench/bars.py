"""Figures and their bars: what misses one is red and named, and a figure that nobody measured is missing, not
silently absent."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.console import Console

__all__ = ["end", "unmeasured", "verdict"]


def verdict(bar: str, value: float, ratio: float | None = None) -> bool | None:
    """Whether a bar is reached: a sign and a limit. One that ends in x is for the ratio to Apache Kafka, and
    None is the answer when there is no ratio."""
    words = bar.split()
    sign, text = (words[0], words[1]) if len(words) == 2 else ("==", words[0])
    if text.endswith("x"):
        if ratio is None:
            return None
        value, limit = ratio, float(text[:-1])
    else:
        limit = float(text)
    return {">=": value >= limit, "<=": value <= limit, ">": value > limit, "<": value < limit}.get(
        sign, value == limit
    )


def unmeasured(bars: Iterable[str], measured: Collection[str]) -> list[str]:
    """Complaints about figures that have a bar and that no load gave."""
    return [f"{figure}: no load measured it" for figure in bars if figure not in measured]


def end(console: Console, missed: list[str]) -> int:
    """Name what missed its bar; the exit code."""
    for miss in missed:
        console.print(f"[red]missed: {miss}[/red]")
    return int(bool(missed))
