"""When the indexer commits: soon for a few records, seldom while it has many to catch up with."""

from __future__ import annotations

from pathlib import Path

from chronik.query.index import TopicIndex
from chronik.query.indexer import (
    CATCH_UP_COMMIT_SECONDS,
    CATCH_UP_RECORDS,
    COMMIT_RECORDS,
    COMMIT_SECONDS,
    Topic,
)


def topic(path: Path, *, left: int, pending: int = 1) -> Topic:
    made = Topic("t", "id", TopicIndex(path), positions={0: 5, 1: 7}, ends={0: 5, 1: 7 + left})
    made.index.pending = pending
    made.committed_at = 100.0
    return made


def test_what_was_read_to_the_end_is_committed_soon(tmp_path: Path) -> None:
    caught_up = topic(tmp_path, left=CATCH_UP_RECORDS - 1)
    assert not caught_up.is_due(100.0 + COMMIT_SECONDS / 2)
    assert caught_up.is_due(100.1 + COMMIT_SECONDS)


def test_while_much_is_left_commits_are_few(tmp_path: Path) -> None:
    behind = topic(tmp_path, left=CATCH_UP_RECORDS)
    assert not behind.is_due(100.1 + COMMIT_SECONDS)
    assert behind.is_due(100.1 + CATCH_UP_COMMIT_SECONDS)
    behind.index.pending = COMMIT_RECORDS
    assert behind.is_due(100.0), "memory and the work after a crash are bounded"
