"""When the indexer commits: soon for a few records, seldom while it has many to catch up with."""

from __future__ import annotations

from pathlib import Path

from chronik.query.index import TopicIndex
from chronik.query.indexer import (
    COMMIT_RECORDS,
    COMMIT_SECONDS,
    COMMIT_SECONDS_MAX,
    LEFT_PER_SECOND,
    Topic,
)
from chronik.query.tail import Tail


def topic(path: Path, *, left: int, pending: int = 1) -> Topic:
    made = Topic("t", "id", TopicIndex(path), positions={0: 5, 1: 7}, tails={0: Tail(5), 1: Tail(7 + left)})
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
