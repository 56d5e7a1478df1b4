"""What a task does to the Python worker that it runs in."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from chronik.spark.daemon import quiet
from chronik.spark.interpreter import prefer_installed, worker_python
from tests.node import SOURCE

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


def installed(folder: Path) -> Path:
    """A folder with a pyspark that holds its own archives, and with py4j."""
    for name in ("pyspark", "py4j"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    archives = folder / "pyspark" / "python" / "lib"
    archives.mkdir(parents=True)
    return archives


def test_the_installed_pyspark_goes_before_its_own_archive(tmp_path: Path) -> None:
    archives = installed(tmp_path / "site")
    spark, others = str(archives / "pyspark.zip"), ["", str(tmp_path / "mine.zip"), str(tmp_path / "site")]
    assert prefer_installed([spark, str(archives / "py4j-src.zip"), *others]) == others


def test_the_archive_of_another_pyspark_stays(tmp_path: Path) -> None:
    installed(tmp_path / "site")
    path = ["", str(tmp_path / "elsewhere" / "pyspark.zip"), str(tmp_path / "site")]
    assert prefer_installed(path) == path
    assert prefer_installed(path[:2]) == path[:2]


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


def test_an_archive_that_is_not_used_is_not_read_again(tmp_path: Path) -> None:
    archives = installed(tmp_path / "site")
    with zipfile.ZipFile(archives / "pyspark.zip", "w") as made:
        made.writestr("pyspark/__init__.py", "")
    (tmp_path / "told.py").write_text(
        "import sys; print(any(path.endswith('pyspark.zip') for path in sys.path_importer_cache))"
    )
    path = os.pathsep.join(map(str, (archives / "pyspark.zip", tmp_path / "site", tmp_path, SOURCE)))
    said = subprocess.run(
        [sys.executable, "-m", "chronik.spark.interpreter", "-m", "told"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout == "False\n", said.stderr


def test_the_script_does_what_python_does(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import sys; print(__name__, sys.argv[1:])")
    said = [
        subprocess.run(
            [program, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for program in (worker_python(), sys.executable)
        for arguments in (["-m", "told", "-m", "x"], ["-c", "import sys; print(sys.argv)", "y"])
    ]
    assert said == ["__main__ ['-m', 'x']\n", "['-c', 'y']\n"] * 2
    assert worker_python() != sys.executable
