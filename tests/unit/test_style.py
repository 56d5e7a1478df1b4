"""The rules of the code base that no linter knows."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from chronik.metadata import events

PACKAGE = Path(__file__).parents[2] / "src" / "chronik"
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600

PURE_FOLDERS = ("records", "raft", "wire", "check")
IMPURE = {"asyncio", "time", "random", "secrets", "threading", "socket", "selectors", "subprocess"}

FILES = sorted(PACKAGE.rglob("*.py"))

_WITHOUT_A_NODE = ("check", "cli", "client", "columns", "local", "query", "sim", "spark", "testing")
"""Folders that run without a node, around nodes, or in a process beside the node."""
NODE_FILES = [path for path in FILES if path.relative_to(PACKAGE).parts[0] not in _WITHOUT_A_NODE]
OWNERS = ("tasks.py", "node.py")
"""`node.py` waits for its one task where it starts it."""

SAME_NAME = {
    "Cluster": "public: chronik.client.Cluster is asked, chronik.testing.Cluster is started",
    "Connection": "the two ends of one: chronik.client's and chronik.server's",
}
"""The only names that two classes share, and why."""


def says_it_is_pure(path: Path) -> bool:
    """Modules that get time, randomness and I/O handed in say so; simulator and property tests rely on it."""
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text)) if "pure" in text.lower() else None
    return re.search(r"\bpure\b", docstring or "", re.I) is not None


PURE_FILES = [
    path for path in FILES if path.relative_to(PACKAGE).parts[0] in PURE_FOLDERS or says_it_is_pure(path)
]


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


def test_the_folders_of_unit_tests_are_those_of_the_source() -> None:
    """At the top of tests/unit are tests of single modules of the package, and of the repository itself."""
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/__init__.py")}
    assert folders == packages


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "__init__.py"], ids=name)
def test_packages_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "__init__.py"], ids=name)
def test_a_package_names_the_files_that_it_has(path: Path) -> None:
    """In its docstring a package lists its files: all of them, or none."""
    text = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
    lines = re.findall(r"^ +(\w+\.py(?:, \w+\.py)*) ", text, re.MULTILINE)
    named = [file for line in lines for file in line.split(", ")]
    assert [file for file in named if not (path.parent / file).exists()] == []
    if named:
        files = {file.name for file in path.parent.glob("*.py")} - {"__init__.py", "__main__.py"}
        assert files - set(named) == set()


def test_the_state_machines_are_among_the_pure_modules() -> None:
    """The list is derived; were it empty, nothing above would be checked."""
    names = {name(path) for path in PURE_FILES}
    expected = {
        "groups/classic_group.py",
        "groups/consumer_group.py",
        "transactions/transaction.py",
        "raft/core.py",
    }
    assert expected | {"replication/watermark_rule.py", "cluster/placement.py", "wire/produce.py"} <= names


@pytest.mark.parametrize("path", [path for path in FILES if "__all__" in path.read_text()], ids=name)
def test_what_a_module_exports_exists(path: Path) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    assert [export for export in module.__all__ if not hasattr(module, export)] == []


@pytest.mark.parametrize("path", [path for path in NODE_FILES if name(path) not in OWNERS], ids=name)
def test_the_parts_of_a_node_keep_their_tasks_in_tasks(path: Path) -> None:
    """Nobody would hear of the failure of another task, or end it with the node."""
    called = {
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert not called & {"create_task", "ensure_future"}


def test_no_two_classes_share_a_name() -> None:
    """Nor do private ones: who searches for a name, or sees it in a traceback, finds one class."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name(path))
    assert {same: found for same, found in places.items() if len(found) > 1 and same not in SAME_NAME} == {}
    assert [same for same in SAME_NAME if len(places.get(same, [])) != 2] == []


EVENTS = sorted(kind.__name__ for kind in get_args(events.Event))


def named(tree: ast.AST) -> str:
    """The last part of a name, or nothing."""
    return tree.attr if isinstance(tree, ast.Attribute) else tree.id if isinstance(tree, ast.Name) else ""


def made_and_heard() -> tuple[set[str], set[str]]:
    """Names that are called somewhere, and names that somebody tells apart: in a `case`, with `isinstance`,
    as a kind that is subscribed to."""
    made, heard = set(), set()
    for path in FILES:
        if name(path) == "metadata/events.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.MatchClass):
                heard.add(named(node.cls))
            elif isinstance(node, ast.Call):
                made.add(named(node.func))
                if named(node.func) in ("isinstance", "subscribe"):
                    heard.update(named(one) for given in node.args for one in ast.walk(given))
            elif isinstance(node, ast.Tuple):
                heard.update(map(named, node.elts))
    return made, heard


def test_every_event_is_published_and_heard() -> None:
    """One that nobody publishes, or nobody listens for, only looks like a part of the bus (S08)."""
    made, heard = made_and_heard()
    assert {"LeaderChanged", "HighWatermarkUpdated", "Resync"} <= set(EVENTS)
    assert [event for event in EVENTS if event not in made] == []
    assert [event for event in EVENTS if event not in heard] == []
