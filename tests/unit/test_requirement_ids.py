"""Requirement ids: each that is named is explained, each that is explained has something that guards it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\b[SLHPXRNOT][0-9]{2}\b")
KNOWN = re.findall(r"^\| ([A-Z][0-9]{2}) \|", (ROOT / "docs" / "REQUIREMENTS.md").read_text(), re.MULTILINE)
TABLES = re.compile(r"^\| ([A-Z][0-9]{2}(?:, [A-Z][0-9]{2})*) \|.*`(?:tests|bench)/", re.MULTILINE)
"""Rows of docs/TESTING.md that name a test; `test_failures_table.py` checks that it exists."""
NOT_THERE_YET: dict[str, str] = {}


def test_every_id_is_explained() -> None:
    assert {"S01", "L06", "T43", "X07"} <= set(KNOWN)
    folders = ("src", "tests", "tools", "bench", "docs")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    named = {name: path for path in files for name in ID.findall(path.read_text())}
    assert len(named) > 50
    assert {name: str(path) for name, path in named.items() if name not in KNOWN} == {}


def test_every_requirement_is_guarded_or_said_to_be_missing() -> None:
    """A row that no test and no bench names is one that may be forgotten."""
    assert len(KNOWN) == len(set(KNOWN)) > 100
    guarded = guarded_ids()
    assert [name for name in KNOWN if name not in guarded and name not in NOT_THERE_YET] == []
    assert [name for name in NOT_THERE_YET if name in guarded or name not in KNOWN] == []


def guarded_ids() -> set[str]:
    files = [
        path
        for folder in ("tests", "bench")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__).resolve()
    ]
    named = {name for path in files for name in ID.findall(path.read_text())}
    rows = TABLES.findall((ROOT / "docs" / "TESTING.md").read_text())
    return named | {name for row in rows for name in row.split(", ")}
