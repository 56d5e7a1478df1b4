"""Records that are in no index yet: found as if they were, counted once, left alone if they are too many."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from chronik.client import Fetched
from chronik.client.visibility import AbortedTransaction
from chronik.model import TopicPartition
from chronik.query import tail as tail_module
from chronik.query.history import History
from chronik.query.index import IndexSnapshot, TopicIndex
from chronik.query.indexed_topic import IndexedTopic
from chronik.query.indexer import Indexer
from chronik.query.request import SearchRequest, SearchResult
from chronik.query.searching import Search
from chronik.query.tail import Tail
from chronik.records.batch import stamp
from chronik.records.compression import Compression
from chronik.records.reader import Record
from chronik.records.writer import build_batch, build_marker

NOW = 1_700_000_000_000
NAMES = ("Ada Lovelace", "grace", "linus", "barbara")
TORN = 37
"""A time that jumps back and forth, so that the youngest is not the last."""


def value(n: int) -> bytes | None:
    match n % 10:
        case 7:
            return None
        case 8:
            return f"plain words {n}".encode()
        case 9:
            return b"\xff\xfe"
        case _:
            return json.dumps({"id": n, "customer": NAMES[n % 4], "total": n / 4}).encode()


def records(first: int, end: int) -> list[Record]:
    return [
        Record(key=b"k%d" % n if n % 3 else None, value=value(n), timestamp_ms=NOW + n * TORN % 50)
        for n in range(first, end)
    ]


def fetched(first: int, data: bytearray, next_offset: int, *, partition: int = 0, **more: Any) -> Fetched:
    return Fetched(
        tp=TopicPartition("orders", partition),
        fetch_offset=first,
        next_offset=next_offset,
        data=memoryview(data),
        aborted=more.get("aborted", ()),
        high_watermark=next_offset,
        last_stable_offset=next_offset,
        log_start_offset=0,
    )


def parts() -> list[Fetched]:
    """Offsets 0 to 60 of partition 0, with an aborted transaction from 20 to 25 and its marker."""
    marker = build_marker(
        commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW
    )
    stamp(marker, 0, 25, 0)
    middle = (
        build_batch(records(10, 20), base_offset=10, compression=Compression.GZIP)
        + build_batch(records(20, 25), base_offset=20, producer_id=7, producer_epoch=0, is_transactional=True)
        + marker
        + build_batch(records(26, 40), base_offset=26)
    )
    return [
        fetched(0, build_batch(records(0, 10), base_offset=0), 10),
        fetched(10, middle, 40, aborted=(AbortedTransaction(20, 7),)),
        fetched(40, build_batch(records(40, 60), base_offset=40, compression=Compression.ZSTD), 60),
    ]


class Place:
    """A topic of which everything before an offset is indexed and the rest is in its tail."""

    def __init__(self, path: Path, split: int, target: int = 0) -> None:
        self.topic = IndexedTopic("orders", "id", TopicIndex(path), targets={0: target})
        tail = self.topic.tails[0] = Tail(0)
        for part in parts():
            tail.add(part)
            self.topic.index.add(0, [row for row in part.rows() if row[0] < split])
        self.topic.index.commit({0: split})
        tail.drop(split)
        self.topic.positions[0] = split
        self.hurried = 0

    def hurry(self) -> None:
        self.hurried += 1

    def search(self, query: Any, published: Any = None, **more: Any) -> SearchResult:
        indexer = SimpleNamespace(topic=lambda *_: self.topic, is_on=True, hurry=self.hurry)
        history = cast(History, SimpleNamespace(find=lambda *_: published))
        request = SearchRequest(query=query, **more)
        return Search(cast(Indexer, indexer), history, request).run({"orders": [0]}, {"orders": "id"})


class Published:
    """All of a topic; while a search looks into it, the log's start moves on, `moves` times."""

    ends: ClassVar = {0: 60}

    def __init__(self, whole: Place, topic: IndexedTopic, moves: int) -> None:
        self._whole, self._topic, self._moves = whole, topic, moves

    @property
    def snapshot(self) -> IndexSnapshot:
        if self._moves:
            self._moves -= 1
            self._topic.starts[0] += 1
        return self._whole.topic.index.snapshot


QUERIES = [
    {"match_all": {}},
    {"term": {"customer": "ada"}},
    {"match_phrase": {"customer": "ada lovelace"}},
    {"match": {"_text": "words 38"}},
    {"term": {"id": 41}},
    {"range": {"total": {"gte": 3, "lt": 11}}},
    {"range": {"_offset": {"gte": 9, "lt": 45}}},
    {"term": {"_key": "k41"}},
    {"exists": {"field": "_key"}},
    {"bool": {"must_not": [{"term": {"customer": "grace"}}]}},
    {"query_string": {"query": "customer:ada AND total:>5"}},
    {"ids": {"values": ["0-3", "0-24", "0-25", "0-41", "0-99"]}},
    {"match_none": {}},
]
ORDERS: list[Any] = [
    [],
    ["_offset"],
    [{"_offset": "desc"}],
    [{"@timestamp": "desc"}],
    ["@timestamp"],
    ["total"],
]


@pytest.mark.parametrize("split", [0, 5, 10, 23, 26, 33, 40, 59])
def test_a_search_finds_the_same_wherever_the_index_ends(tmp_path: Path, split: int) -> None:
    whole, cut = Place(tmp_path / "whole", 60), Place(tmp_path / "cut", split)
    for query in QUERIES:
        expected = {hit["_id"]: hit["_source"] for hit in whole.search(query, size=100).hits}
        for sort in ORDERS:
            found = cut.search(query, size=100, sort=sort)
            assert {hit["_id"]: hit["_source"] for hit in found.hits} == expected, (query, sort)
            assert len(found.hits) == found.total == len(expected)
            assert found.reached == {"orders": {0: 60}}
            few, same = (place.search(query, size=4, sort=sort) for place in (cut, whole))
            assert few.total == found.total
            if sort:
                assert [hit["sort"] for hit in few.hits] == [hit["sort"] for hit in same.hits], (query, sort)
            assert cut.search(query, size=0, sort=sort).total == found.total
    assert cut.hurried == 0


def test_a_page_of_everything_reads_no_more_than_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    whole = tail_module.FetchedBatch.rows

    def rows(batch: tail_module.FetchedBatch) -> Any:
        read.append(batch.header.base_offset)
        return whole(batch)

    monkeypatch.setattr(tail_module.FetchedBatch, "rows", rows)
    place = Place(tmp_path, 0)
    assert place.search({"match_all": {}}, size=0).total == 54
    assert read == []
    assert [hit["offset"] for hit in place.search({"match_all": {}}, size=3).hits] == [0, 1, 2]
    assert read == [0]
    newest = place.search({"match_all": {}}, size=2, sort=[{"_offset": "desc"}])
    assert [hit["offset"] for hit in newest.hits] == [59, 58]
    assert read == [0, 40]


def test_too_many_are_left_to_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "ROWS_MAX", 5)
    place = Place(tmp_path, 10)
    few = place.search({"term": {"id": 41}})
    assert (few.total, few.reached) == (1, {"orders": {0: 60}})
    many = place.search({"term": {"customer": "ada"}})
    assert (many.total, many.reached) == (2, {"orders": {0: 10}})
    assert place.search({"range": {"total": {"gte": 0}}}).reached == {"orders": {0: 10}}
    assert place.hurried == 2


def test_too_many_are_no_answer_while_the_index_is_being_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, 10, target=60)
    assert place.search({"term": {"customer": "ada"}}).failures == []
    monkeypatch.setattr(tail_module, "ROWS_MAX", 5)
    found = place.search({"term": {"customer": "ada"}})
    assert (found.total, [one["shard"] for one in found.failures]) == (0, [0])


def test_deleted_records_are_gone_from_the_tail_as_well(tmp_path: Path) -> None:
    place = Place(tmp_path, 0)
    place.topic.starts[0] = 30
    assert place.search({"match_all": {}}, size=0).total == 30
    assert [hit["offset"] for hit in place.search({"match_all": {}}, size=1).hits] == [30]
    assert place.search({"term": {"id": 12}}).total == 0


def test_a_tail_gives_its_parts_in_order_and_lets_go_of_what_is_indexed() -> None:
    kept = Tail(0)
    for part in parts():
        kept.add(part)
    assert kept.position == 60
    first = kept.next_part(0)
    assert first is not None
    assert first.fetch_offset == 0
    for position, wanted in ((5, 0), (10, 10)):  # 5: the log lost its beginning while this came
        following = kept.next_part(position)
        assert following is not None
        assert following.fetch_offset == wanted
    kept.drop(40)
    assert [part.fetch_offset for part in kept.parts] == [40]
    assert kept.size_bytes == len(kept.parts[0].data)
    assert kept.next_part(60) is None


def test_a_search_looks_again_if_the_oldest_records_are_deleted_meanwhile(tmp_path: Path) -> None:
    whole, cut = Place(tmp_path / "whole", 60), Place(tmp_path / "cut", 30)
    cut.topic.starts[0] = 5
    expected = whole.search({"match_all": {}}, size=100)
    found = cut.search({"match_all": {}}, Published(whole, cut.topic, 2), size=100)
    assert (found.total, found.failures) == (expected.total, [])
    assert sorted(hit["_id"] for hit in found.hits) == sorted(hit["_id"] for hit in expected.hits)


def test_a_search_says_so_if_records_are_deleted_all_the_time(tmp_path: Path) -> None:
    whole, cut = Place(tmp_path / "whole", 60), Place(tmp_path / "cut", 60)
    cut.topic.starts[0] = 5
    found = cut.search({"match_all": {}}, Published(whole, cut.topic, 50))
    assert (found.total, found.hits) == (0, [])
    assert [one["reason"] for one in found.failures] == ["its oldest records are being deleted"]
