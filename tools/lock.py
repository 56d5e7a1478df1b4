"""Resolve the dependencies of pyproject.toml into requirements/*.lock (`make lock`).

The locks carry hashes and no index address: where packages come from is the machine's business. Run it
with the oldest supported Python: a dependency that only old Pythons need is then in the lock, and a newer
Python merely installs one package too many.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OPTIONS = (
    "--quiet",
    "--generate-hashes",
    "--strip-extras",
    "--allow-unsafe",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-trusted-host",
    "--no-emit-options",
)
RUN_LOCK = "requirements/run.lock"
LOCKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (RUN_LOCK, ()),
    ("requirements/dev.lock", ("--extra", "dev", "--extra", "spark", "--constraint", RUN_LOCK)),
)
PYTHON_OLDEST = (3, 11)


def main() -> int:
    if sys.version_info[:2] != PYTHON_OLDEST:
        print(
            f"make lock runs on Python {PYTHON_OLDEST[0]}.{PYTHON_OLDEST[1]}, "
            f"this is {sys.version_info[0]}.{sys.version_info[1]}"
        )
        return 1
    for lock, options in LOCKS:
        Path(lock).parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "piptools", "compile", *OPTIONS, *options]
        subprocess.run([*command, "--output-file", lock, *sys.argv[1:], "pyproject.toml"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
