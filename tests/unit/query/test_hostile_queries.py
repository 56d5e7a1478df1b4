"""Search queries of any shape are answered or refused as the client's mistake; none is an error of ours."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chronik.query.index import EVERYTHING, TopicIndex, find
from chronik.query.messages import QueryError
from chronik.query.request import SearchRequest, check_request
from tests.fuzz import queries
from tests.fuzz.values import json_bytes
from tests.unit.query.test_index import ORDERS, record

TRIES = 1_500


@pytest.fixture
def index(tmp_path: Path) -> TopicIndex:
    made = TopicIndex(tmp_path / "index")
    pick = random.Random(1)
    values = [*ORDERS, *(json_bytes(pick) for _ in range(20))]
    made.add(0, [record(offset, value, b"k") for offset, value in enumerate(values)])
    made.commit({})
    return made


def outcome(index: TopicIndex, body: bytes) -> str:
    try:
        request = msgspec.json.decode(body, type=SearchRequest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "no request"
    try:
        check_request(request)
        find(index.snapshot, request.query, {0: EVERYTHING}, limit=10, order=None, ascending=False)
    except QueryError as error:
        assert error.status == 400
        return "refused"
    return "found"


def test_a_query_of_any_shape_is_answered_or_refused(index: TopicIndex) -> None:
    outcomes: dict[str, int] = {}
    wrong: dict[str, bytes] = {}
    for seed in range(TRIES):
        _, body = queries.search(random.Random(seed))
        try:
            result = outcome(index, body)
        except BaseException as error:  # tantivy's panics are no Exception
            wrong[f"{error!r}"[:80]] = body[:300]
            continue
        outcomes[result] = outcomes.get(result, 0) + 1
    assert not wrong, "\n".join(f"{error}: {body!r}" for error, body in wrong.items())
    assert min(outcomes["found"], outcomes["refused"]) > TRIES // 20


@pytest.mark.parametrize(
    "query",
    [
        {"constant_score": {"filter": {"match_all": {}}, "boost": {}}},
        {"ids": {"values": 5}},
        {"bool": {"must": [{"match_all": {}}], "minimum_should_match": -1}},
        {"bool": {"should": [{"match_all": {}}], "minimum_should_match": 2**70}},
        {"prefix": {"_text": "y" * 20_000}},
        {"fuzzy": {"_key": {"value": "y" * 20_000}}},
    ],
)
def test_refused(index: TopicIndex, query: Any) -> None:
    with pytest.raises(QueryError):
        find(index.snapshot, query, {}, limit=1, order=None, ascending=False)
