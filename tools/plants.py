"""Plants bugs below the simulator's level, each with the tests of the tables in docs/TESTING.md that must
notice it.

`make mutants` plants one at a time in a copy of the repository and runs those tests there: each has to fail,
by itself, not because the copy is broken. `is_quick` ones take seconds; `tests/unit/test_plants.py` runs one
of them in each `make test`, another one every day, for its unit tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools import planted_doors, planted_programs, planted_rows
from tools.planted_defects import DEFECTS
from tools.planted_failures import FAILURES, Plant

__all__ = ["PLANTS", "BrokenPlantError", "Plant", "judge", "plant", "source_of", "unnoticed"]

PLANTS: Final = (*FAILURES, *DEFECTS, *planted_rows.ROWS, *planted_doors.ROWS, *planted_programs.ROWS)
ROOT: Final = Path(__file__).parents[1]
COPIED: Final = ("src", "tests", "tools", "bench", "docs", "deploy", "examples")
BESIDE: Final = ("bench", "deploy", "docs", "tests")
"""Folders beside the source in which a plant may be."""
LINKED: Final = (".venv", ".jars", ".foreign")
SECONDS_MAX: Final = 600
"""A test that does not end has noticed."""


class BrokenPlantError(Exception):
    """The tests could not run with this bug, so none of them judged it."""


def plant(one: Plant, folder: Path) -> None:
    """A copy of what tests need, with the bug in it. Fails when the source no longer has the place."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "logs"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, folder / path.name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    path = source_of(one, folder)
    text = path.read_text()
    if text.count(one.text) != 1:
        raise SystemExit(f"plant {one.name!r}: its place in {one.file} is there {text.count(one.text)} times")
    path.write_text(text.replace(one.text, one.replacement))
    _let_all_processes_see(folder)


def _let_all_processes_see(folder: Path) -> None:
    """Some ignore PYTHONPATH on purpose, so they would run the installed source, without the bug."""
    source = str(folder / "src")
    for name, place, replacement in (
        ("src/chronik/query/process.py", '            "-I",  #', '            "-P",  #'),
        (
            "src/chronik/query/process.py",
            "ENVIRONMENT: Final = {\n",
            f'ENVIRONMENT: Final = {{\n    "PYTHONPATH": {source!r},\n',
        ),
        ("tests/unit/query/test_confinement.py", 'sys.executable, "-I",', 'sys.executable, "-P",'),
        (
            "tests/spark/test_plain_session.py",
            '            "SPARK_LOCAL_IP"',
            f'            "PYTHONPATH": {source!r},\n            "SPARK_LOCAL_IP"',
        ),
    ):
        path = folder / name
        text = path.read_text()
        if text.count(place) != 1:
            raise SystemExit(f"{place!r} is in {name} {text.count(place)} times")
        path.write_text(text.replace(place, replacement))


def source_of(one: Plant, root: Path = ROOT) -> Path:
    is_beside = one.file.split("/")[0] in BESIDE
    return root / one.file if is_beside else root / "src" / "chronik" / one.file


def unnoticed(one: Plant) -> list[str]:
    """Those of its tests that pass although the bug is there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(one, folder)
        return [test for test in one.tests if not _fails(test, folder)]


def _fails(test: str, folder: Path) -> bool:
    paths = os.pathsep.join((str(folder / "src"), str(folder)))
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", test]
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        out, _ = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    return judge(out, process.returncode)


def judge(out: str, code: int) -> bool:
    """Whether the test failed by itself. What could not be collected, or set up, shows nothing."""
    has_failed = any(line.startswith("FAILED ") for line in out.splitlines())
    if code not in (0, 1) or has_failed != (code == 1):
        raise BrokenPlantError((out.strip().splitlines() or [f"exit code {code}"])[-1])
    return has_failed
