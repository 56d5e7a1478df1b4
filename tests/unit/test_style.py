"""The rules of the code base that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "chronik"
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600

# Modules that get time, randomness and I/O handed in: the simulator and the property tests rely on it.
PURE = (
    "model.py",
    "records/*.py",
    "raft/*.py",
    "wire/*.py",
    "metadata/commands.py",
    "metadata/state.py",
    "replication/isr.py",
    "replication/watermark.py",
    "groups/group.py",
    "transactions/transaction.py",
)
IMPURE = {"asyncio", "time", "random", "secrets", "threading", "socket", "selectors", "subprocess"}

FILES = sorted(PACKAGE.rglob("*.py"))
PURE_FILES = sorted(path for pattern in PURE for path in PACKAGE.glob(pattern))


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES_MAX
    long = [
        f"{node.name}: {lines} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


@pytest.mark.parametrize("path", PURE_FILES, ids=name)
def test_pure_modules_have_no_clock_and_no_io(path: Path) -> None:
    assert not set(imported(ast.parse(path.read_text()))) & IMPURE


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "__init__.py"], ids=name)
def test_packages_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))
