"""Requirement ids: each that is named is explained, each that is explained has something that guards it."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

from bench.cluster_table import AIMS

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\b[SLHPXRNOT][0-9]{2}\b")
KNOWN = re.findall(r"^\| ([A-Z][0-9]{2}) \|", (ROOT / "docs" / "REQUIREMENTS.md").read_text(), re.MULTILINE)
ABOUT_OTHERS = frozenset({"test_requirement_ids.py", "test_bench_bars.py"})
"""Tests that name ids and guard none of them."""
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
    return ids_in_tests() | ids_in_tables() | ids_of_bars()


def ids_in_tests() -> set[str]:
    """What real tests say they guard: not this list of ids, and not the tests of the benches' verdicts."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path.name not in ABOUT_OTHERS]
    return {name for path in files for name in ID.findall(path.read_text())}


def ids_in_tables() -> set[str]:
    """Rows of docs/TESTING.md that name a test; `test_failures_table.py` checks that it exists."""
    found = set()
    for line in (ROOT / "docs" / "TESTING.md").read_text().splitlines():
        row = re.match(r"\| ([A-Z][0-9]{2}(?:, [A-Z][0-9]{2})*) \|", line)
        tests = re.findall(r"`tests/(?:[^`]*/)?(test_\w+\.py)::", line)
        if row is not None and not ABOUT_OTHERS.issuperset(tests):
            found.update(row[1].split(", "))
    return found


def ids_of_bars() -> set[str]:
    """Rows of the table of three nodes, and what limits of other benches say they are for."""
    found = {name for aim in AIMS.values() for name in ID.findall(aim.row)}
    for path in (ROOT / "bench").glob("*.py"):
        for one, said in pairwise(ast.parse(path.read_text()).body):
            is_text = isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)
            if is_text and isinstance(one, ast.Assign | ast.AnnAssign):
                targets = ast.unparse(one.targets[0] if isinstance(one, ast.Assign) else one.target)
                if re.search(r"_(MAX|MIN)\b|\bBARS|\bAIM", targets):
                    found.update(ID.findall(ast.unparse(said)))
    return found


def test_what_only_names_an_id_guards_nothing() -> None:
    """Loads, pages and the tests of verdicts do: were they counted, no row could go missing."""
    assert "S14" in ids_of_bars()
    assert {"L05", "N01", "N04", "S05", "T32", "T33"} <= ids_of_bars() - ids_in_tests()
    assert "T32" not in ids_in_tables(), "its only test is about a verdict"
    assert {"T10", "S01"} <= ids_in_tables()
    assert all((Path(__file__).parent / one).is_file() for one in ABOUT_OTHERS)
