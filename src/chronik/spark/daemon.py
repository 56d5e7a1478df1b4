"""Spark's daemon of Python workers, with what a task needs loaded before it forks them.

Workers that load it themselves pay for it one by one, in time and in memory; forked after the loading they
share it. Started by Spark as `python -m chronik.spark.daemon pyspark.worker` (spark.python.daemon.module).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_MADV_DONTNEED: Final = 4


def load() -> None:
    """Import what reads and writes, and scan a record so that the compiled code is there too."""
    from chronik.records.reader import Record
    from chronik.records.writer import build_batch
    from chronik.spark import reader, writer  # noqa: F401
    from chronik.spark.scanner import COLUMN_TYPES, Scanner, Window

    batch = build_batch([Record(key=b"", value=b"", headers=(("", b""),), timestamp_ms=0)])
    for _ in Scanner(tuple(COLUMN_TYPES), "topic", 0).scan(batch, Window()):
        pass


def forget_the_compiler() -> None:
    """Give the pages of the compiler's program back: it has done its work, and they are most of what is held.

    They come back from the file if something is compiled after all.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        if " r-xp " in line and line.endswith("libllvmlite.so"):
            first, end = (int(number, 16) for number in line.split()[0].split("-"))
            advise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_DONTNEED)


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker without the stack trace when Spark goes away: so it does when it has rows enough."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return run


def main() -> None:
    from pyspark import daemon

    load()
    forget_the_compiler()
    daemon.worker = quiet(daemon.worker)
    gc.freeze()  # a collection would touch, and so copy, the pages that workers share
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
