"""The order of hits and the limits of a search."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chronik.query.messages import QueryError
from chronik.query.request import SearchRequest, check_request, sort_key, sort_of
from chronik.query.searching import highlight


def request(**fields: Any) -> SearchRequest:
    return msgspec.convert(fields, SearchRequest)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ([], None),
        (["_score"], None),
        (["total"], ("total", True)),
        ([{"@timestamp": "desc"}], ("@timestamp", False)),
        ([{"total": {"order": "desc"}}, "_offset"], ("total", False)),
        ({"name.keyword": "asc"}, ("name", True)),
    ],
)
def test_sort_is_read(sort: Any, expected: Any) -> None:
    assert sort_of(request(sort=sort)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"size": -1},
        {"size": 5000},
        {"from": -1},
        {"from": 9_999, "size": 2},
        {"sort": [{"a": "up"}]},
        {"sort": [5]},
    ],
)
def test_what_is_beyond_the_limits_is_refused(fields: Any) -> None:
    with pytest.raises(QueryError):
        check_request(request(**fields))


def test_hits_of_several_nodes_fall_into_one_order() -> None:
    hits = [
        {"_index": "t", "partition": p, "offset": o, "_score": None, "sort": [value]}
        for p, o, value in [(0, 1, 5), (1, 1, None), (0, 2, 7.5), (1, 2, "text"), (1, 3, 5)]
    ]
    up = sorted(hits, key=lambda hit: sort_key(hit, ("n", True)))
    assert [hit["sort"][0] for hit in up] == [5, 5, 7.5, "text", None]
    assert [hit["partition"] for hit in up[:2]] == [0, 1]
    down = sorted(hits, key=lambda hit: sort_key(hit, ("n", False)))
    assert [hit["sort"][0] for hit in down] == [7.5, 5, 5, "text", None]


def test_highlights_mark_whole_words_in_the_wanted_fields() -> None:
    source = {"note": "Express delivery, express!", "deep": {"x": "delivery"}, "n": 5, "other": "expressive"}
    marks = highlight(source, {"express", "delivery"}, {"*": {}})
    assert marks["note"] == ["<em>Express</em> <em>delivery</em>, <em>express</em>!"]
    assert marks["deep.x"] == ["<em>delivery</em>"]
    assert set(highlight(source, {"delivery"}, {"note": {}})) == {"note"}
    assert highlight(source, set(), {"*": {}}) == {}
