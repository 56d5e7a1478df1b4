"""The Python that Spark starts on this machine: the one of this process, minus Spark's archive of pyspark.

Spark puts `pyspark.zip` ahead of everything on the module path of its Python processes, and each process
compiles what it imports from there anew, which takes longer than many a query. Where the archive belongs to
the very pyspark that is installed, unpacked and compiled, the installed one is used instead.

Spark wants the path of an executable file, so `worker_python` makes a small script that runs this module. On
Linux the processes of one Spark are forked from one (`chronik.spark.forking`).
"""

from __future__ import annotations

import hashlib
import os
import runpy
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from chronik.spark.forking import forked


def private_directory(parent: Path) -> Path | None:
    """A directory for code that only this user can write; None if there cannot be one.

    What lies there is run as it is found, so a directory that somebody else made or may write to is not used.
    """
    directory = parent / f"chronik-compiled-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return directory if ours else None


def worker_python() -> str:
    """The script for Spark's processes, or plain Python where no script can be made or run.

    It lies where nobody tidies up, if it can: a stream that runs for months may start a process at any time.
    """
    return next(filter(None, map(_script, _directories())), sys.executable)


def _directories() -> Iterator[Path]:
    parents = (Path(os.path.expanduser("~/.cache")), Path(tempfile.gettempdir()))
    return filter(None, map(private_directory, parents))


def _script(directory: Path) -> str | None:
    text = (
        "#!/bin/sh\nexport PYTHONHASHSEED=${PYTHONHASHSEED-0}\n"  # as Spark has it for workers, not for all
        f'exec {shlex.quote(sys.executable)} -m chronik.spark.interpreter "$@"\n'
    )
    script = directory / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        if not script.exists():
            made = script.with_suffix(f".{os.getpid()}")
            made.write_text(text)
            made.chmod(0o700)
            made.replace(script)
    except OSError:
        return None
    return str(script) if os.access(script, os.X_OK) else None


def prefer_installed(path: list[str]) -> list[str]:
    """The module path without Spark's archives, if they are those of the pyspark that is installed."""
    unpacked = [part for part in path if not part.endswith(".zip")]
    found = PathFinder.find_spec("pyspark", unpacked)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", unpacked) is None:
        return path
    archives = Path(found.origin).parent / "python" / "lib"
    return [part for part in path if not (part.endswith(".zip") and Path(part).parent == archives)]


def main() -> None:
    """Do what Python does with the same arguments."""
    if len(sys.argv) < 3 or sys.argv[1] != "-m":
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    archives = set(sys.path)
    sys.path[:] = prefer_installed(sys.path)
    for archive in archives.difference(sys.path):  # Spark's processes read again what is known here
        sys.path_importer_cache.pop(archive, None)
    module = sys.argv[2]
    del sys.argv[1:3]
    directory = next(_directories(), None)
    if sys.platform == "linux" and directory is not None:
        module = forked(module, directory)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
