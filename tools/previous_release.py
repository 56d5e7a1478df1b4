"""Keep what a node of the release before needs, for the test that upgrades from it and goes back.

    python tools/previous_release.py REVISION

writes tests/cluster/previous/chronik.tar.xz: the package at that revision, without what no node runs. It is
in the repository because a clone need not have the history, and a release is not always on an index.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ARCHIVE: Final = ROOT / "tests" / "cluster" / "previous" / "chronik.tar.xz"
LEFT_OUT: Final = ("sim", "spark", "testing", "check", "columns")


def main() -> None:
    (revision,) = sys.argv[1:]
    skipped = [f":!src/chronik/{name}" for name in LEFT_OUT]
    command = ["git", "archive", "--format=tar", revision, "src/chronik", *skipped]
    packed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))
    print(f"{ARCHIVE.relative_to(ROOT)}: {ARCHIVE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
