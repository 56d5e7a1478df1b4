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
    from chronik.columns.scanner import COLUMN_TYPES, RecordWindow, Scanner
    from chronik.records.reader import Record
    from chronik.records.writer import build_batch
    from chronik.spark import reader, writer  # noqa: F401

    batch = build_batch([Record(key=b"", value=b"", headers=(("", b""),), timestamp_ms=0)])
    for _ in Scanner(tuple(COLUMN_TYPES), "topic", 0).scan(batch, RecordWindow()):
        pass


def forget_the_compiler() -> None:
    """Release the memory pages of the compiler's library, which are most of what this process holds. They are
    read from the file again if something is compiled after all.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        if " r-xp " in line and line.endswith("libllvmlite.so"):
            first, end = (int(number, 16) for number in line.split()[0].split("-"))
            advise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_DONTNEED)


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Suppress the stack trace when Spark hangs up, as it does once it has enough rows."""

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
