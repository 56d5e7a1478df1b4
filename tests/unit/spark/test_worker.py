"""What a task does to the Python worker that it runs in."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

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
