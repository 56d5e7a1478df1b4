"""What storage keeps is written by its owner: others call a method that says what happened."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import chronik
from tests.unit.replication.test_ownership import attributes, last_name, written

SOURCE = Path(chronik.__file__).parent
OWNERS = {
    "flusher": ("storage/flusher.py",),
    "retirement": ("storage/retirement.py",),
    "segment": ("storage/segment.py",),
    "active": ("storage/segment.py",),
    "relaxed": ("storage/relaxed.py",),
    "log": ("storage/log.py", "storage/log_parts.py"),
    "log_": ("storage/log.py", "storage/log_parts.py"),
    "share": ("client_state.py",),
    "outbox": ("links/outbox.py",),
}
"""By the name that the object has everywhere: the files that may write its state."""


def state_of(file: str) -> set[str]:
    """The attributes that the classes of a file give themselves."""
    targets = written(ast.parse((SOURCE / file).read_text()))
    found = (one for target in targets for one in attributes(target))
    return {one.attr.removeprefix("_") for one in found if last_name(one.value) == "self"}


STATE = {owner: state_of(files[0]) for owner, files in OWNERS.items()}


def foreign_writes(source: str, path: str) -> Iterator[str]:
    for target in written(ast.parse(source)):
        for found in attributes(target):
            owner = last_name(found.value)
            is_owned = found.attr.removeprefix("_") in STATE.get(owner, ())
            if is_owned and path not in OWNERS[owner]:
                yield f"line {found.lineno}: {owner}.{found.attr}"


FILES = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_nobody_else_writes_what_storage_keeps(path: str) -> None:
    assert list(foreign_writes((SOURCE / path).read_text(), path)) == []


@pytest.mark.parametrize(
    "change",
    [
        "unsynced, self.flusher._unsynced = self.flusher._unsynced, {}",
        "log_.retirement.is_compacting = True",
        "active.created_ms = 1",
        "segment.verified_bytes = min(segment.verified_bytes, 5)",
        "self._share.refused += 1",
        "self.log.config = config",
        "link.outbox.is_writable = False",
    ],
)
def test_a_write_from_outside_is_found(change: str) -> None:
    assert [*foreign_writes(change, "elsewhere.py")] != []
