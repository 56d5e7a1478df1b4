"""What a task does to the Python worker that it runs in."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from chronik.spark.daemon import quiet

PROGRAM = """
import importlib, sys, zipimport
from chronik.spark.reader import spare_the_worker
sys.path.insert(0, sys.argv[1])
import bundled.one
def cached():
    return [each for each in sys.path_importer_cache.values() if isinstance(each, zipimport.zipimporter)]
before = len(cached())
spare_the_worker()
after = len(cached())
importlib.invalidate_caches()
import bundled.two
print(before > 0, after, bundled.two.NUMBER)
"""


def test_modules_in_archives_are_found_though_nothing_is_read_anew(tmp_path: Path) -> None:
    archive = tmp_path / "bundled.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("bundled/__init__.py", "")
        made.writestr("bundled/one.py", "")
        made.writestr("bundled/two.py", "NUMBER = 2")
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(archive)], capture_output=True, text=True, check=False
    )
    assert said.stdout == "True 0 2\n", said.stderr


def test_the_scanner_works_when_the_compiler_is_forgotten_and_remembered() -> None:
    program = (
        "import numba\n"
        "from chronik.spark.daemon import forget_the_compiler, load\n"
        "load(); forget_the_compiler(); load()\n"
        "print(numba.njit(lambda number: number + 1)(1))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.stdout == "2\n", said.stderr


def test_a_worker_whose_rows_are_no_longer_wanted_ends_without_a_stack_trace() -> None:
    def wanted_no_more(_: str) -> int:
        raise BrokenPipeError

    assert quiet(len)("four") == 4
    assert quiet(wanted_no_more)("rows") == 1
