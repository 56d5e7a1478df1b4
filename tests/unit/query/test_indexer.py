"""When the indexer commits: soon for a few records, seldom while it has many to catch up with.

And what it lets go of when it fails.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from chronik.client import Cluster
from chronik.model import TopicPartition
from chronik.query.index import TopicIndex
from chronik.query.indexed_topic import (
    COMMIT_RECORDS,
    COMMIT_SECONDS,
    COMMIT_SECONDS_MAX,
    LEFT_PER_SECOND,
    IndexedTopic,
)
from chronik.query.indexer import Indexer
from chronik.query.tail import Tail
from chronik.records.reader import Row


def topic(path: Path, *, left: int, pending: int = 1) -> IndexedTopic:
    made = IndexedTopic(
        "t", "id", TopicIndex(path), positions={0: 5, 1: 7}, tails={0: Tail(5), 1: Tail(7 + left)}
    )
    made.index.pending = pending
    made.committed_at = 100.0
    return made


def test_what_was_read_to_the_end_is_committed_soon(tmp_path: Path) -> None:
    caught_up = topic(tmp_path, left=0)
    assert not caught_up.is_due(100.0 + COMMIT_SECONDS / 2)
    assert caught_up.is_due(100.1 + COMMIT_SECONDS)


def test_the_more_is_left_the_rarer_are_commits(tmp_path: Path) -> None:
    behind = topic(tmp_path / "some", left=LEFT_PER_SECOND)
    assert not behind.is_due(100.9 + COMMIT_SECONDS)
    assert behind.is_due(101.1 + COMMIT_SECONDS)
    far = topic(tmp_path / "much", left=100 * LEFT_PER_SECOND)
    assert not far.is_due(99.9 + COMMIT_SECONDS_MAX)
    assert far.is_due(100.1 + COMMIT_SECONDS_MAX)
    far.index.pending = COMMIT_RECORDS
    assert far.is_due(100.0), "memory and the work after a crash are bounded"


class Failing(Indexer):
    """It fails inside of the writer, in a task that the run knows: a circle of references."""

    async def _follow(self) -> None:
        topic = self.topics["t"] = IndexedTopic("t", "id", TopicIndex(self._root))
        feeding = asyncio.create_task(
            self._on_thread(partial(topic.index.add, 0, cast(Any, rows_that_fail())))
        )
        await feeding

    async def _pause(self, seconds: float) -> None:
        await super()._pause(0)
        raise Paused


class Paused(Exception):
    pass


def rows_that_fail() -> Iterator[Row]:
    yield 0, 0, None, b"{}", ()
    raise OSError("the disk is full")


async def test_a_failed_writer_gives_its_lock_back_at_once(tmp_path: Path) -> None:
    async def fail_and_write_again() -> None:
        indexer = Failing(tmp_path, lambda: cast(Cluster, None), lambda progress: None)
        with pytest.raises(Paused):
            await indexer.run()
        assert TopicIndex(tmp_path).add(0, [(0, 0, None, b"{}", ())]) == 0

    gc.disable()
    try:
        await asyncio.wait_for(fail_and_write_again(), 10)
    finally:
        gc.enable()


async def test_nobody_waits_for_an_earlier_topic_of_the_same_name(tmp_path: Path) -> None:
    """A topic that was deleted and created again: the index of the first says nothing about it."""
    indexer = Indexer(tmp_path, lambda: cast(Cluster, None), lambda progress: None)
    old = indexer.topics["t"] = topic(tmp_path / "old", left=0)
    old.index.reach({0: 5, 1: 7})
    ends = {TopicPartition("t", 0): 5}
    await indexer.until(ends, {"t": "id"})
    waiting = asyncio.create_task(indexer.until(ends, {"t": "another id"}))
    await asyncio.sleep(0)
    await indexer.until_read(ends, {"t": "another id"})
    assert indexer.topic("t", {"t": "another id"}) is None
    assert not waiting.done()
    new = indexer.topics["t"] = IndexedTopic("t", "another id", TopicIndex(tmp_path / "new"))
    new.index.reach({0: 5})
    async with indexer._moved:
        indexer._moved.notify_all()
    await waiting
