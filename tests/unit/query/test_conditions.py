"""What a query needs of a record's bytes: never more than the search itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronik.query.conditions import ANYTHING, Piece, condition_of
from chronik.query.index import find, snapshot_of
from chronik.query.messages import QueryError
from chronik.records.reader import Row

NOW = 1_700_000_000_000
KELVIN, DOTTED = "\u212a", "\u0130"


def piece(row: Row) -> Piece:
    offset, timestamp_ms, key, value, _ = row
    text = b"%b\n%b" % (key or b"", value or b"")
    return Piece(text.lower(), 0, (offset, offset), (timestamp_ms, timestamp_ms))


def batch(rows: list[Row]) -> Piece:
    text = b"\x07".join(piece(row).text for row in rows)
    return Piece(text, 0, (rows[0][0], rows[-1][0]), (-(2**63), rows[-1][1]), is_batch=True)


def row(offset: int, value: bytes | None, key: bytes | None = b"k") -> Row:
    return (offset, NOW + offset, key, value, ())


NAMES = (
    f"ada Ada ADA kernel {KELVIN}ernel {DOTTED}stanbul istanbul {DOTTED} i k Stra\u00dfe M\u00fcller "
    f"\u00c5ngstr\u00f6m \u212bx true 5 5.0 2.5 2024-01-01 {'x' * 41}"
)
WRITTEN = (
    "5 5.0 5.00 5e0 0.5E1 50e-1 -5 15 5.5 2.5 2.50 25e-1 0 -0.0 1e6 1000000 4.99999999999999999999 3e5 "
    "2.4999999999999999999999 9007199254740993 0.1 0.10 1e-7 0.0000001 100000000000000000000 "
    "99999999999999999999.5 1234567.99999999999999"
)
words = st.one_of(
    st.sampled_from(NAMES.split()),
    st.text(alphabet=f'aAkK{KELVIN}{DOTTED}\u00e9\u00c9i\u0307 5."\\/\n-_', max_size=6),
)
texts = st.lists(words, min_size=1, max_size=3).map(" ".join)
written = st.sampled_from(WRITTEN.split())
DATES = ("2026-01-02T03:04:05Z", "2026-01-02T04:04:05+01:00", "2024-01-01T00:00:00Z")
dates = st.sampled_from(DATES)


class Raw(str):
    """A number as it is written."""


leaves = st.one_of(texts, dates, st.booleans(), st.none(), written.map(Raw))
values = st.one_of(
    leaves, st.lists(leaves, max_size=3), st.dictionaries(st.sampled_from("cd"), leaves, max_size=2)
)
objects = st.dictionaries(st.sampled_from(["a", "b", "Kind", f"{DOTTED}d"]), values, max_size=3)


def dumped(value: Any, escaped: bool) -> str:
    match value:
        case Raw():
            return str(value)
        case dict():
            inner = (
                (json.dumps(name, ensure_ascii=escaped), dumped(one, escaped)) for name, one in value.items()
            )
            return "{" + ", ".join(f"{name}:{one}" for name, one in inner) + "}"
        case list():
            return "[" + ",".join(dumped(one, escaped) for one in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=escaped)


documents = st.one_of(
    st.builds(dumped, objects, st.booleans()).map(str.encode),
    texts.map(str.encode),
    st.none(),
    st.binary(max_size=5),
)
keys = st.one_of(st.none(), texts.map(str.encode))

fields = st.sampled_from(["a", "b", "b.c", "a.d", "Kind", f"{DOTTED}d", "_text", "_key"])
numbers = st.one_of(
    st.sampled_from(
        [5, 5.0, 2.5, -5, 0, 0.1, 1e-7, 1_000_000, 1e20, 9007199254740993, 1234568, 300_000.0, 0.5]
    )
)
terms = st.one_of(texts, dates, numbers, st.booleans(), written.map(str))
own = st.sampled_from(["_offset", "@timestamp", "_partition"])
ends = st.one_of(st.none(), st.integers(0, 9), st.integers(NOW, NOW + 9))


def one(kind: str, names: st.SearchStrategy[str], inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda name, value: {kind: {name: value}}, names, inner)


leaf_queries = st.one_of(
    one("match", fields, terms),
    one("match", fields, st.fixed_dictionaries({"query": terms, "operator": st.sampled_from(["and", "or"])})),
    one("match_phrase", fields, terms),
    one("term", fields, terms),
    one("terms", fields, st.lists(terms, max_size=3)),
    one("prefix", fields, words.filter(bool)),
    one("fuzzy", fields, words),
    one("range", own, st.fixed_dictionaries({"gte": ends, "lt": ends})),
    one("term", own, st.integers(0, 9)),
    one("range", st.sampled_from(["a", "b.c"]), st.fixed_dictionaries({"gte": st.integers(0, 9)})),
    st.builds(lambda name: {"exists": {"field": name}}, fields),
    st.builds(lambda n: {"ids": {"values": [f"0-{n}"]}}, st.integers(0, 9)),
    st.builds(lambda text: {"multi_match": {"query": text, "fields": ["a", "b"]}}, texts),
    st.builds(
        lambda text: {"query_string": {"query": text}},
        st.sampled_from(
            ["a:ada", "ada kernel", "ada OR 5", "-ada +k*", "_offset:[1 TO 3]", '"ada 5"', "b.c:>2", "*"]
        ),
    ),
    st.just({"match_all": {}}),
    st.just({"match_none": {}}),
)
queries = st.recursive(
    leaf_queries,
    lambda inner: st.one_of(
        st.builds(
            lambda parts, least: {
                "bool": {**parts, **({} if least is None else {"minimum_should_match": least})}
            },
            st.dictionaries(
                st.sampled_from(["must", "filter", "should", "must_not"]),
                st.lists(inner, min_size=1, max_size=2),
            ),
            st.one_of(st.none(), st.integers(0, 2)),
        ),
        st.builds(lambda query: {"constant_score": {"filter": query}}, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(keys, documents), min_size=1, max_size=8), st.lists(queries, min_size=1, max_size=6)
)
def test_whatever_a_search_finds_meets_the_condition(
    given_records: list[tuple[bytes | None, bytes | None]], asked: list[Any]
) -> None:
    rows = [row(offset, value, key) for offset, (key, value) in enumerate(given_records)]
    snapshot = snapshot_of({0: rows})
    for query in asked:
        try:
            found = find(snapshot, query, {}, limit=100, order=None, ascending=False)
        except QueryError:
            continue
        condition = condition_of(query)
        for hit in found.hits:
            assert condition.holds(piece(rows[hit.offset])), (query, rows[hit.offset])
            assert condition.holds(batch(rows)), query


def test_every_way_to_write_a_value_meets_every_way_to_ask_for_it() -> None:
    written_values = [
        *(
            dumped({"a": value}, escaped)
            for value in [*NAMES.split(), *map(Raw, WRITTEN.split())]
            for escaped in (False, True)
        ),
        *(dumped({"a": {"c": [value, f"x {value} y"]}}, False) for value in NAMES.split()),
        *(dumped({"a": date}, False) for date in DATES),
        '{"a": "\\u0061da"}',
        *NAMES.split(),
    ]
    rows = [row(n, value.encode(), value.encode()[:9]) for n, value in enumerate(written_values)]
    snapshot = snapshot_of({0: rows})
    asked = [
        *NAMES.split(),
        *WRITTEN.split(),
        *DATES,
        *map(json.loads, WRITTEN.split()),
        True,
        "x ada",
        "5 5",
    ]
    matches = 0
    for kind in ("match", "match_phrase", "term"):
        for field in ("a", "a.c", "_text", "_key"):
            for value in asked:
                query = {"bool": {"must": [{kind: {field: value}}], "should": [{"term": {"a": "ada"}}]}}
                condition = condition_of(query)
                hits = find(snapshot, query, {}, limit=1000, order=None, ascending=False).hits
                matches += len(hits)
                missed = [rows[hit.offset] for hit in hits if not condition.holds(piece(rows[hit.offset]))]
                assert missed == [], query
    assert matches > len(asked)


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ({"term": {"customer": "ada"}}, b'{"customer": "grace"}'),
        ({"match": {"note": {"query": "express delivery", "operator": "and"}}}, b'{"note": "delivery"}'),
        ({"match_phrase": {"note": "kernel panic"}}, b'{"note": "a panic"}'),
        ({"term": {"id": 999}}, b'{"id": 9999, "total": 12.999, "hash": "3e5f999a"}'),
        ({"term": {"total": 2.5}}, b'{"total": 12.5, "other": 2.55}'),
        ({"query_string": {"query": "customer:ada AND total:>5"}}, b'{"customer": "grace", "total": 7}'),
        ({"bool": {"filter": [{"range": {"_offset": {"gt": 7}}}]}}, b"{}"),
        ({"ids": {"values": ["0-4", "1-3"]}}, b"{}"),
        ({"exists": {"field": "customer"}}, b'{"id": 1}'),
        ({"match_none": {}}, b"{}"),
    ],
)
def test_it_tells_most_records_that_are_not_meant(query: Any, value: bytes) -> None:
    """Else a search would have to index them all."""
    assert not condition_of(query).holds(piece(row(3, value)))


@pytest.mark.parametrize(
    "query",
    [
        {"match_all": {}},
        {"bool": {"must_not": [{"term": {"a": "ada"}}]}},
        {"bool": {"should": [{"term": {"a": "ada"}}, {"fuzzy": {"a": "x"}}]}},
        {"term": {"when": "2026-01-02T03:04:05Z"}},
        {"term": {"n": 1e300}},
    ],
)
def test_where_bytes_say_nothing_anything_will_do(query: Any) -> None:
    assert condition_of(query) == ANYTHING
