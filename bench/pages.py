"""Figures that a bench puts into a page of the documentation, between two marks that name the bench."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["machine", "markdown", "put", "with_figures"]


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    lines = [headings, ["---", *(["---:"] * (len(headings) - 1))], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_figures(page: str, bench: str, figures: str) -> str:
    """The page with other figures between the two marks of this bench."""
    begin, end = f"<!-- {bench}: begin -->", f"<!-- {bench}: end -->"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{figures}{end}{after}"


def put(page: Path, bench: str, figures: str) -> None:
    page.write_text(with_figures(page.read_text(), bench, figures))


def machine() -> str:
    """What the figures were measured on."""
    with open("/proc/meminfo") as meminfo:
        gib = int(meminfo.readline().split()[1]) / 2**20
    linux = platform.release().split("-")[0]
    return f"{os.cpu_count()} cores ({platform.machine()}), {gib:.0f} GiB of memory, Linux {linux}"
