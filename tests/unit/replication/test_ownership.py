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
CHANGES = {
    *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft"),
    *("insert", "intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse"),
    *("rotate", "setdefault", "sort", "symmetric_difference_update", "update"),
}
"""Methods of sets, lists, dicts and deques that change them."""
STATE = {name.removeprefix("_") for name in Replica.__slots__}


def written(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            yield from node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES
        ):
            yield node.func.value


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


def foreign_writes(source: str) -> Iterator[str]:
    for target in written(ast.parse(source)):
        for found in attributes(target):
            if found.attr.removeprefix("_") in STATE and last_name(found.value) in OWNERS:
                yield f"line {found.lineno}: {found.attr}"


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nobody_else_writes_the_state_of_a_partition(path: Path) -> None:
    assert list(foreign_writes(path.read_text())) == []


@pytest.mark.parametrize(
    "change",
    [
        "partition.isr = ()",
        "self._partition.leader_id, x = 2, 1",
        "del replica.followers[1]",
        "partition.high_watermark += 1",
        "partition.followers.clear()",
        "self.partition._followers.pop(1)",
        "replica.followers[1].update(x)",
    ],
)
def test_a_write_from_outside_is_found(change: str) -> None:
    assert [*foreign_writes(change)] != []


def test_what_only_reads_is_none() -> None:
    assert [*foreign_writes("partition.followers.get(1); partition.add(2); names.add(partition.isr)")] == []
