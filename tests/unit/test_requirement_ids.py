"""Every requirement id that code, tests or documents name is explained in docs/REQUIREMENTS.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\b[SLHPXRNOT][0-9]{2}\b")


def test_every_id_is_explained() -> None:
    known = set(re.findall(r"^\| ([A-Z][0-9]{2}) \|", (ROOT / "docs" / "REQUIREMENTS.md").read_text(), re.M))
    assert {"S01", "L06", "T43", "X07"} <= known
    folders = ("src", "tests", "tools", "bench", "docs")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    named = {name: path for path in files for name in ID.findall(path.read_text())}
    assert len(named) > 50
    assert {name: str(path) for name, path in named.items() if name not in known} == {}
