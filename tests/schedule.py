"""In which order test files run, and which of them share a worker.

Tests of real processes wait half of the time, so more files run side by side than there are processors. These
tests come first and the short files last, so that all workers end together. The files of a folder in
`ONE_WORKER` share one cluster or one Spark session, which is slow to start and costs something as long as it
runs: one worker has them all, so that it is started once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

ONE_WORKER = ("spark", "cluster")
ORDER = (*ONE_WORKER, "crash", "faults", "compat", "security", "query", "fuzz", "browser", "sim", "unit")
"""The folders of tests; the last one has the short files."""


def put_in_order(items: list[pytest.Item]) -> None:
    """Folders as in `ORDER`; of the files of a folder that are independent, those with many tests first."""
    counts = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int, Path]:
        folder = folder_of(item.nodeid)
        rank = ORDER.index(folder) if folder in ORDER else len(ORDER)
        return rank, 0 if folder in ONE_WORKER else -counts[item.path], item.path

    items.sort(key=place)


def folder_of(nodeid: str) -> str:
    """The folder below `tests`."""
    return nodeid.removeprefix("tests/").partition("/")[0]


class FilesInOrder(LoadFileScheduling):
    """`--dist loadfile` in the order of the collection, and with folders that one worker has whole."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        folder = folder_of(nodeid)
        return folder if folder in ONE_WORKER else super()._split_scope(nodeid)
