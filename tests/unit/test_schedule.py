"""The order of test files (tests/schedule.py): every folder has a place, folders that share stay whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.schedule import ONE_WORKER, ORDER, FilesInOrder, put_in_order

TESTS = Path(__file__).parents[1]


def item(file: str, test: str = "test_it") -> Any:
    return SimpleNamespace(nodeid=f"tests/{file}::{test}", path=TESTS / file)


def test_every_folder_of_tests_has_its_place() -> None:
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    assert folders == set(ORDER)


def test_long_folders_come_first_and_files_stay_together() -> None:
    files = ["unit/test_a.py", "unit/test_b.py", "unit/test_b.py", "sim/test_c.py", "cluster/test_e.py"]
    items = [item(file) for file in [*files, "cluster/test_d.py", "unit/test_a.py", "unit/test_b.py"]]
    put_in_order(items)
    names = [one.path.stem[-1] for one in items]
    assert "".join(names) == "decbbbaa"


def test_a_folder_with_something_to_share_goes_to_one_worker() -> None:
    scheduler = object.__new__(FilesInOrder)
    for folder in ONE_WORKER:
        assert scheduler._split_scope(f"tests/{folder}/test_a.py::test_x[a::b]") == folder
    assert scheduler._split_scope("tests/unit/test_a.py::test_x[1]") == "tests/unit/test_a.py"
