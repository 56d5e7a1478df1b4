"""The blocks of code in the pages for readers, wherever they stand."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^##+ (.*)$", re.MULTILINE)


class Block(NamedTuple):
    page: str
    line: int
    section: str
    """The nearest heading above it."""
    language: str
    code: str


def pages() -> list[str]:
    found = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for found in _FENCED.finditer(text):
        before = text[: found.start()]
        headings = _HEADING.findall(_FENCED.sub("", before))
        yield Block(
            page=page,
            line=before.count("\n") + 1,
            section=headings[-1] if headings else "",
            language=found[2],
            code=textwrap.dedent(found[3]),
        )
