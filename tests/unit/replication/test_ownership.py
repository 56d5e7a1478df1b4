"""A partition owns its state: others read it, and call a method when something happened."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import chronik
from chronik.replication.replica import Replica

SOURCE = Path(chronik.__file__).parent
OWNERS = {"partition", "replica"}
STATE = {name.removeprefix("_") for name in Replica.__slots__}


def written(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            yield from node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target


def attributes(target: ast.expr) -> Iterator[ast.Attribute]:
    """`a.b`, also where only a part of it is written: `a.b[c]`, or one of several."""
    if isinstance(target, ast.Attribute):
        yield target
    elif isinstance(target, ast.Subscript):
        yield from attributes(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from attributes(one)


def last_name(value: ast.expr) -> str:
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.removeprefix("_")
    return ""


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nobody_else_writes_the_state_of_a_partition(path: Path) -> None:
    for target in written(ast.parse(path.read_text())):
        for found in attributes(target):
            is_state = found.attr.removeprefix("_") in STATE
            assert not (is_state and last_name(found.value) in OWNERS), f"line {found.lineno}: {found.attr}"
