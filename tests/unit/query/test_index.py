"""The search index of a topic: what is found, what is refused, what a damaged file does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronik.published.paths import PATHS_FILE, PATHS_MAX
from chronik.query.dsl import Translator
from chronik.query.history import PublishedIndex
from chronik.query.index import EVERYTHING, IndexDamaged, TopicIndex, find
from chronik.query.messages import QueryError
from chronik.records.reader import Row

NOW = 1_700_000_000_000


def record(offset: int, value: object, key: bytes | None = b"k") -> Row:
    data = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return (offset, NOW + offset, key, data, ())


ORDERS = [
    {
        "customer": "Ada Lovelace",
        "total": 12.5,
        "n": 5,
        "ok": True,
        "when": "2026-01-02T03:04:05Z",
        "a b": {"c-d": 1},
    },
    b"plain Words here",
    None,
    b"\xff\xfe",
    b'{}, "_partition": 9, "x": {}',
    {"total": 100, "customer": "grace", "tags": ["red", "dark blue"]},
]


@pytest.fixture
def index(tmp_path: Path) -> TopicIndex:
    made = TopicIndex(tmp_path / "index")
    made.add(0, [record(n, value, None if n == 5 else b"k") for n, value in enumerate(ORDERS)])
    made.commit({})
    return made


def offsets(index: TopicIndex, query: Any, partitions: tuple[int, ...] = (0,)) -> list[int]:
    spans = index.narrowed(dict.fromkeys(partitions, EVERYTHING))
    found = find(index.snapshot, query, spans, limit=100, order=None, ascending=False)
    assert found.total == len(found.hits)
    return sorted(hit.offset for hit in found.hits)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"match_all": {}}, [0, 1, 2, 3, 4, 5]),
        ({"match_none": {}}, []),
        ({"match": {"customer": "ada"}}, [0]),
        ({"match": {"customer": "lovelace grace"}}, [0, 5]),
        ({"match": {"customer": {"query": "lovelace grace", "operator": "and"}}}, []),
        ({"match_phrase": {"customer": "ada lovelace"}}, [0]),
        ({"match_phrase": {"customer": "lovelace ada"}}, []),
        ({"term": {"customer": "Ada Lovelace"}}, [0]),
        ({"term": {"customer.keyword": {"value": "grace"}}}, [5]),
        ({"term": {"n": 5}}, [0]),
        ({"term": {"n": 5.0}}, [0]),
        ({"term": {"total": 100.0}}, [5]),
        ({"term": {"ok": True}}, [0]),
        ({"match": {"ok": "true"}}, [0]),
        ({"match": {"when": "2026-01-02T03:04:05Z"}}, [0]),
        ({"terms": {"n": [4, 5]}}, [0]),
        ({"terms": {"n": []}}, []),
        ({"match": {"tags": "blue"}}, [5]),
        ({"range": {"total": {"gt": 12, "lte": 99}}}, [0]),
        ({"range": {"total": {"gte": 12.5}}}, [0, 5]),
        ({"range": {"total": {"gt": 12.5, "lt": 100}}}, []),
        ({"range": {"when": {"gte": "2026-01-01", "lt": "2026-02-01"}}}, [0]),
        ({"range": {"when": {"gte": "2026-02-01"}}}, []),
        ({"range": {"@timestamp": {"gte": NOW + 3}}}, [3, 4, 5]),
        ({"range": {"_offset": {"lt": 2}}}, [0, 1]),
        ({"range": {"customer": {"gte": "b", "lt": "h"}}}, [5]),
        ({"range": {"a b.c-d": {"gte": 1}}}, [0]),
        ({"term": {"a b.c-d": 1}}, [0]),
        ({"match": {"_text": "words"}}, [1]),
        ({"match": {"_text": "lovelace"}}, [0]),
        ({"match": {"_text": "words grace"}}, [1, 5]),
        ({"match": {"_text": {"query": "grace --- blue", "operator": "and"}}}, [5]),
        ({"match": {"_text": {"query": "grace 100", "operator": "and"}}}, [5]),
        ({"match": {"_text": "12.5"}}, [0]),
        ({"match": {"_text": "---"}}, []),
        ({"term": {"_text": 5}}, [0]),
        ({"term": {"_text": True}}, [0]),
        ({"match_phrase": {"_text": "dark blue"}}, [5]),
        ({"match_phrase": {"_text": "plain words"}}, [1]),
        ({"prefix": {"_text": "lov"}}, [0]),
        ({"fuzzy": {"_text": "grase"}}, [5]),
        ({"range": {"_text": {"gte": "lov", "lt": "lovf"}}}, [0]),
        ({"term": {"_offset": 3}}, [3]),
        ({"term": {"@timestamp": NOW + 4}}, [4]),
        ({"exists": {"field": "customer"}}, [0, 5]),
        ({"exists": {"field": "_key"}}, [0, 1, 2, 3, 4]),
        ({"term": {"_key": "k"}}, [0, 1, 2, 3, 4]),
        ({"prefix": {"customer": "Lov"}}, [0]),
        ({"fuzzy": {"customer": "grase"}}, [5]),
        ({"ids": {"values": ["0-1", "0-5", "1-1"]}}, [1, 5]),
        ({"multi_match": {"query": "grace", "fields": ["customer^2", "note"]}}, [5]),
        ({"bool": {"must": [{"match": {"customer": "ada"}}], "must_not": {"term": {"n": 6}}}}, [0]),
        ({"bool": {"must_not": [{"exists": {"field": "customer"}}]}}, [1, 2, 3, 4]),
        ({"bool": {"filter": {"range": {"total": {"gt": 50}}}}}, [5]),
        ({"bool": {"should": [{"term": {"n": 5}}, {"term": {"total": 100}}]}}, [0, 5]),
        ({"bool": {}}, [0, 1, 2, 3, 4, 5]),
        ({"constant_score": {"filter": {"term": {"n": 5}}}}, [0]),
        ({"query_string": {"query": "ada total:>10"}}, [0]),
        ({"query_string": {"query": '"ada lovelace" OR grace'}}, [0, 5]),
        ({"query_string": {"query": "NOT ada"}}, [1, 2, 3, 4, 5]),
        ({"query_string": {"query": "customer:gra*"}}, [5]),
        ({"query_string": {"query": "total:[12 TO 13] OR _offset:1"}}, [0, 1]),
        ({"query_string": {"query": "when:[2026-01-01T00:00:00Z TO *]"}}, [0]),
        ({"term": {"_partition": 9}}, []),
        ({"exists": {"field": "x"}}, []),
    ],
)
def test_queries_find_what_they_mean(index: TopicIndex, query: Any, expected: list[int]) -> None:
    assert offsets(index, query) == expected


@pytest.mark.parametrize(
    "query",
    [
        {},
        [],
        "text",
        {"nope": {}},
        {"match": "x"},
        {"match": {}},
        {"match": {"a": 1, "b": 2}},
        {"term": {"x": [1]}},
        {"term": {"_offset": "many"}},
        {"terms": {"x": "y"}},
        {"terms": {"x": list(range(5000))}},
        {"range": {"x": {"above": 1}}},
        {"range": {"x": {"gt": []}}},
        {"range": {"x": 5}},
        {"bool": {"maybe": []}},
        {"bool": {"should": [{"match_all": {}}], "minimum_should_match": "75%"}},
        {"ids": {"values": ["x"]}},
        {"query_string": {"query": "((("}},
        {"prefix": {"_offset": "1"}},
        {"match": {"_text": "a " * 5000}},
        {"bool": {"must": [{"match_all": {}}] * 5000}},
    ],
)
def test_queries_without_meaning_are_refused(index: TopicIndex, query: Any) -> None:
    with pytest.raises(QueryError) as refused:
        offsets(index, query)
    assert refused.value.status == 400


def test_a_phrase_without_end_is_refused(index: TopicIndex) -> None:
    with pytest.raises(QueryError, match="at most 256 words"):
        Translator(index.snapshot.index, ()).translate({"match_phrase": {"note": "a " * 300}})


def test_a_query_that_nests_without_end_is_refused(index: TopicIndex) -> None:
    query: dict[str, Any] = {"match_all": {}}
    for _ in range(200):
        query = {"bool": {"must": query}}
    with pytest.raises(QueryError, match="nest"):
        offsets(index, query)


def test_only_the_partitions_asked_for_are_searched(index: TopicIndex) -> None:
    index.add(3, [record(0, {"customer": "ada"})])
    index.commit({})
    assert offsets(index, {"match": {"customer": "ada"}}, (3,)) == [0]
    assert offsets(index, {"match": {"customer": "ada"}}, (0, 3)) == [0, 0]
    assert index.span(3) == (0, 1, 1)
    index.close()
    again = TopicIndex(index.path)
    assert offsets(again, {"match_all": {}}, (3,)) == [0], "what it held before it was opened counts, too"
    assert len(offsets(again, {"match_all": {}}, (0, 3))) == 7


def test_an_index_resumes_where_it_stopped(index: TopicIndex) -> None:
    index.add(0, [record(6, {"lost": True})])
    index.close()
    again = TopicIndex(index.path)
    assert again.span(0) == (0, 6, 6)
    again.add(0, [record(6, {"kept": True})])
    again.commit({})
    assert again.span(0) == (0, 7, 7)


def test_deleted_records_are_forgotten(index: TopicIndex) -> None:
    index.add(1, [record(0, {"n": 1})])
    index.purge(0, 4)
    index.commit({})
    assert index.span(0) == (4, 6, 2)
    assert index.span(1) == (0, 1, 1)


def test_a_flipped_bit_is_noticed_while_open_and_at_the_next_start(index: TopicIndex) -> None:
    index.close()
    path = next(path for path in index.path.iterdir() if path.suffix == ".store")
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(IndexDamaged, match="not what was written"):
        index.check()
    with pytest.raises(IndexDamaged):
        TopicIndex(index.path)


def test_a_segment_that_is_still_being_written_is_no_damage(index: TopicIndex) -> None:
    """A merge writes beside the searches."""
    unfinished = index.path / f"{'ab' * 16}.store"
    unfinished.write_bytes(b"half")
    index.add(0, [record(6, {"n": 6})])
    index.commit({})
    unfinished.write_bytes(b"half of it")
    index.check()
    index.close()
    assert TopicIndex(index.path).span(0) == (0, 7, 7)


@pytest.mark.parametrize("harm", ["cut", "empty", "gone", "meta", "fields", "paths", "no paths"])
def test_files_that_are_cut_or_gone_are_noticed(index: TopicIndex, harm: str) -> None:
    index.close()
    path = next(path for path in index.path.iterdir() if path.suffix == ".idx")
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "gone":
        for one in index.path.iterdir():
            if one.stem == path.stem:
                one.unlink()
    elif harm == "meta":
        (index.path / "meta.json").write_text("{")
    elif harm == "fields":
        meta = json.loads((index.path / "meta.json").read_bytes())
        (index.path / "meta.json").write_text(json.dumps({**meta, "schema": []}))
    elif harm == "paths":
        (index.path / PATHS_FILE).write_bytes((index.path / PATHS_FILE).read_bytes()[:-1])
    else:
        (index.path / PATHS_FILE).unlink()
    with pytest.raises(IndexDamaged):
        TopicIndex(index.path)


def test_a_published_index_with_other_fields_is_damaged(index: TopicIndex, tmp_path: Path) -> None:
    """tantivy opens it, and panics at the first document."""
    # The writer's threads may still write to the index's own folder.
    published = shutil.copytree(index.path, tmp_path / "published")
    assert PublishedIndex(published, {}, tmp_path / "view").snapshot.searcher.num_docs == 6
    meta = json.loads((published / "meta.json").read_bytes())
    (published / "meta.json").write_text(json.dumps({**meta, "schema": []}))
    with pytest.raises(IndexDamaged, match="list of fields"):
        PublishedIndex(published, {}, tmp_path / "view")


WORDS = st.sampled_from(["red", "green", "blue", "dark blue"])
VALUES = st.fixed_dictionaries({"color": WORDS, "n": st.integers(0, 5)})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(VALUES, max_size=30), color=WORDS, low=st.integers(0, 5))
def test_totals_equal_a_scan(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, Any]], color: str, low: int
) -> None:
    index = TopicIndex(tmp_path_factory.mktemp("index"))
    index.add(0, [record(n, value) for n, value in enumerate(values)])
    index.commit({})
    query = {"bool": {"must": [{"term": {"color": color}}, {"range": {"n": {"gte": low}}}]}}
    wanted = [n for n, v in enumerate(values) if color in v["color"] and v["n"] >= low]
    assert offsets(index, query) == wanted


def anywhere(index: TopicIndex, word: str) -> list[int]:
    return offsets(index, {"match_phrase": {"_text": word}})


@pytest.mark.parametrize(
    "value",
    [
        {"deep": {"er": [{"still": "word"}]}},
        {"dots.in": {"na.mes": "word"}},
        {"dots..": "word", ".": "word"},
        {"": "word"},
        {"back\\slash": "word"},
        {"back\\.slash": {"x": "word"}},
        {"line\nbreak": "word"},
        {'say "x"': "word", "a/b:c [0] {x} *": "other"},
        {"ümläut €": "word"},
        [{"in a list": "word"}],
        {"text": "it { has [ brackets } word"},
        {"half of a pair": "\ud83d", "x": "word"},
        {"beyond all numbers": 10**400, "x": "word"},
        json.loads('{"x":' * 126 + '"word"' + "}" * 126),
        json.loads('{"x":' * 300 + '"word"' + "}" * 300),
    ],
)
def test_a_word_is_found_wherever_it_stands(tmp_path: Path, value: object) -> None:
    index = TopicIndex(tmp_path / "index")
    index.add(0, [record(0, {"a": 1}), record(1, value), record(2, {"b": "none"})])
    index.commit({})
    assert anywhere(index, "word") == [1]
    index.close()
    assert anywhere(TopicIndex(index.path), "word") == [1], "the paths are kept with the index"


@pytest.mark.parametrize("value", [{"a": "word"}, ["word"], "word", None, {"bad": "\ud83d"}])
@pytest.mark.parametrize("key", [None, b"", b'k"\n\\', b"\xff\xfe", "schlüssel €".encode()])
def test_key_value_and_numbers_come_back_as_they_were(
    tmp_path: Path, key: bytes | None, value: object
) -> None:
    raw = None if value is None else json.dumps(value).encode()
    index = TopicIndex(tmp_path / "index")
    index.add(2, [(2**40, -1, key, raw, ())])
    index.commit({})
    found = find(index.snapshot, {"match_all": {}}, {2: EVERYTHING}, limit=1, order=None, ascending=True)
    text = None if key is None else key.decode("utf-8", "replace")
    assert found.hits[0][:5] == (2, 2**40, -1, text, None if raw is None else raw.decode())
    assert offsets(index, {"exists": {"field": "_key"}}, (2,)) == ([] if key is None else [2**40])
    if text is not None:
        assert offsets(index, {"term": {"_key": text}}, (2,)) == [2**40]


def test_a_word_is_found_beyond_the_paths_that_are_kept(tmp_path: Path) -> None:
    index = TopicIndex(tmp_path / "index")
    values = [{f"field{n}": f"word{n}"} for n in range(2 * PATHS_MAX)]
    index.add(0, [record(n, value) for n, value in enumerate(values)])
    index.commit({})
    for n in (0, PATHS_MAX - 1, PATHS_MAX, 2 * PATHS_MAX - 1):
        assert anywhere(index, f"word{n}") == [n]


TREES = st.recursive(
    WORDS | st.integers(0, 5) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def holds(value: object, word: str) -> bool:
    if isinstance(value, dict | list):
        return any(holds(one, word) for one in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and word in value


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.dictionaries(st.text(max_size=3), TREES, max_size=4), max_size=8), word=WORDS)
def test_words_anywhere_equal_a_scan(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, Any]], word: str
) -> None:
    index = TopicIndex(tmp_path_factory.mktemp("index"))
    index.add(0, [record(n, value) for n, value in enumerate(values)])
    index.commit({})
    assert anywhere(index, word) == [n for n, value in enumerate(values) if holds(value, word)]
