"""After a compaction, the index is compared with the log piece by piece, and holds no more than it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.client import Fetched
from chronik.model import TopicPartition
from chronik.query.index import TopicIndex
from chronik.query.indexed_topic import IndexedTopic
from chronik.query.messages import LogLosses
from chronik.query.rechecking import is_stale, replace_lost
from chronik.records.batch import read_header
from chronik.records.body import body_of
from chronik.records.editing import keep_records, raw_records
from chronik.records.reader import Record
from chronik.records.writer import build_batch


def piece(first: int, end: int, lost: frozenset[int] = frozenset()) -> bytearray:
    """A batch with these offsets, as compaction leaves it."""
    records = [Record(key=b"k", value=b'{"n": %d}' % n, timestamp_ms=1) for n in range(first, end)]
    whole = build_batch(records, base_offset=first)
    header = read_header(whole)
    body = body_of(header, whole)
    kept = [one for one in raw_records(header, body) if first + one.offset_delta not in lost]
    return keep_records(header, body, kept, None)


def fetched(first: int, end: int, data: bytearray) -> Fetched:
    return Fetched(
        tp=TopicPartition("t", 0),
        fetch_offset=first,
        next_offset=end,
        data=memoryview(data),
        aborted=(),
        high_watermark=end,
        last_stable_offset=end,
        log_start_offset=0,
    )


@pytest.fixture
def topic(tmp_path: Path) -> IndexedTopic:
    """Offsets 0 to 30 of two partitions are indexed."""
    index = TopicIndex(tmp_path)
    for partition in (0, 1):
        index.add(partition, list(fetched(0, 30, piece(0, 30)).rows()))
    index.commit({0: 30, 1: 30})
    return IndexedTopic("t", "id", index, documents={0: 30, 1: 30})


def counts(topic: IndexedTopic) -> list[int]:
    topic.index.commit({0: 30, 1: 30})
    return [topic.index.count(0, first, first + 10) for first in (0, 10, 20)]


def test_what_compaction_took_goes_and_all_else_stays(topic: IndexedTopic) -> None:
    lost = frozenset({3, 4, 11, 29})
    replace_lost(topic, fetched(0, 20, piece(0, 10, lost) + piece(10, 20, lost)), 30)
    assert counts(topic) == [8, 9, 10]
    replace_lost(topic, fetched(20, 30, piece(20, 30, lost)), 30)
    assert counts(topic) == [8, 9, 9]
    assert topic.index.count(1, 0, None) == 30, "another partition's"
    assert topic.recount == {0}


def test_what_lost_nothing_is_not_written_again(topic: IndexedTopic) -> None:
    replace_lost(topic, fetched(0, 30, piece(0, 30)), 30)
    replace_lost(topic, fetched(5, 30, piece(0, 30)), 30)
    replace_lost(topic, fetched(0, 30, piece(0, 30)), 25)
    assert topic.index.pending == 0
    assert not topic.recount


def test_what_came_after_the_compacted_part_is_left_alone(topic: IndexedTopic) -> None:
    lost = frozenset(range(15, 30))
    replace_lost(topic, fetched(5, 30, piece(0, 30, lost)), 20)
    assert counts(topic) == [10, 5, 10]


def test_a_piece_of_which_nothing_is_left(topic: IndexedTopic) -> None:
    replace_lost(topic, fetched(0, 30, piece(20, 30)), 30)
    assert counts(topic) == [0, 0, 10]


def test_searches_see_it_only_after_a_commit(topic: IndexedTopic) -> None:
    before = topic.index.snapshot.searcher.num_docs
    replace_lost(topic, fetched(0, 30, piece(20, 30)), 30)
    assert topic.index.snapshot.searcher.num_docs == before == 60
    assert is_stale(topic, 0, LogLosses(0, 1, 30))
    topic.rechecked[0] = 1
    assert not is_stale(topic, 0, LogLosses(0, 1, 30))
    assert not is_stale(topic, 1, LogLosses(0, -1, 0)), "it is not compacted"


def test_the_later_of_two_states() -> None:
    assert LogLosses(5, 2, 7).joined(LogLosses(4, 3, 6)) == LogLosses(5, 3, 7)
