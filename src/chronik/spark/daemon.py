"""Spark's daemon of Python workers, with what a task needs loaded before it forks them.

Workers that load it themselves pay for it one by one, in time and in memory; forked after the loading they
share it. Started by Spark as `python -m chronik.spark.daemon pyspark.worker` (spark.python.daemon.module).
"""

from __future__ import annotations

import gc


def load() -> None:
    """Import what reads and writes, and scan a record so that the compiled code is there too."""
    from chronik.records.reader import Record
    from chronik.records.writer import build_batch
    from chronik.spark import reader, writer  # noqa: F401
    from chronik.spark.scanner import COLUMN_TYPES, Scanner, Window

    batch = build_batch([Record(key=b"", value=b"", headers=(("", b""),), timestamp_ms=0)])
    for _ in Scanner(tuple(COLUMN_TYPES), "topic", 0).scan(batch, Window()):
        pass


def main() -> None:
    from pyspark.daemon import manager

    load()
    gc.freeze()  # a collection would touch, and so copy, the pages that workers share
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
