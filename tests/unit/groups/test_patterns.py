"""Patterns of KIP-848 members: what RE2 takes, what it costs, and when names are matched again."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.groups import patterns
from chronik.groups.patterns import PATTERN_BYTES_MAX, PatternWork, TopicPatterns, compile_pattern
from chronik.model import ErrorCode, RequestError
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live
from tests.unit.server.test_bad_group_input import BEAT

NAMES = {"orders": 1, "orders.eu": 1, "payments": 1}


def matched(cache: TopicPatterns, regex: str, topics: dict[str, int]) -> frozenset[str]:
    found = cache.find(regex, topics)
    if isinstance(found, PatternWork):
        work, found = found, found.run(lambda: 0.0)
        cache.keep(work, found)
    return found


def test_the_whole_name_must_match() -> None:
    assert matched(TopicPatterns(), "orders", NAMES) == {"orders"}
    assert matched(TopicPatterns(), "(^orders.*)|(^pay.*)|(x+y*)*", NAMES) == NAMES.keys()


@pytest.mark.parametrize(
    "regex",
    ["(", "(?=x)", "a{1001}", r"\1", "[", "x" * (PATTERN_BYTES_MAX + 1), "(?:a{0,1000}b?){0,1}" * 200],
)
def test_what_re2_does_not_take_is_refused(regex: str) -> None:
    with pytest.raises(RequestError) as caught:
        compile_pattern(regex)
    assert caught.value.code is ErrorCode.invalid_regular_expression


@pytest.mark.parametrize(
    ("regex", "name"),
    [("a?" * 23 + "a" * 23, "a" * 23), ("a?" * 200 + "a" * 200, "a" * 200), ("(a+)+b", "a" * 249)],
)
def test_what_makes_others_backtrack_costs_nothing(regex: str, name: str) -> None:
    start = time.perf_counter()
    matched(TopicPatterns(), regex, {name: 1})
    assert time.perf_counter() - start < 0.1  # 0.7 s for the first, doubling with each letter, by `re`


def test_a_pattern_that_takes_too_long_is_refused() -> None:
    work = TopicPatterns().find("o.*", NAMES)
    assert isinstance(work, PatternWork)
    ticks = iter([0.0, 3.0, 6.0])
    with pytest.raises(RequestError) as caught:
        work.run(lambda: next(ticks))
    assert caught.value.code is ErrorCode.invalid_regular_expression


@given(
    st.lists(st.dictionaries(st.text("ab", min_size=1, max_size=3), st.just(1)), min_size=1, max_size=5),
    st.sampled_from(["a.*", "(ab)+", "[^a]*", "b?a?b?"]),
)
def test_matches_carried_over_equal_matches_made_anew(steps: list[dict[str, int]], regex: str) -> None:
    cache = TopicPatterns()
    for topics in steps:
        assert matched(cache, regex, topics) == {name for name in topics if re.fullmatch(regex, name)}


def test_only_new_names_are_matched_after_a_topic_event() -> None:
    cache = TopicPatterns()
    matched(cache, "o.*", NAMES)
    more = {**NAMES, "others": 1}
    del more["orders"]
    work = cache.find("o.*", more)
    assert isinstance(work, PatternWork)
    assert (work.fresh, work.kept) == ({"others"}, {"orders.eu"})


def test_what_is_remembered_is_bounded() -> None:
    cache = TopicPatterns(names_kept_max=10)
    for number in range(20):
        matched(cache, f".*|{number}", NAMES)
    assert len(cache) == 2
    assert not isinstance(cache.find(".*|19", NAMES), PatternWork)
    assert isinstance(cache.find(".*|0", NAMES), PatternWork)


async def beat(node: Live, member_id: str, **changes: Any) -> Any:
    fields = {**BEAT, "group_id": "g", "member_id": member_id, **changes}
    return await node.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **fields)


async def test_heartbeats_match_again_only_after_topic_events(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders.eu", 1)
        await node.find("g")
        known = node.node.parts.services.groups._matching.patterns
        regex = "(orders[.].*)|(^x+y*z?.*)|((ab)*c+)"
        joined = await beat(node, "a", subscribed_topic_regex=regex, subscribed_topic_names=["plain"])
        assert joined.error_code is ErrorCode.none
        assert len(joined.assignment.topic_partitions) == 1
        before = known.computed
        quiet = {"subscribed_topic_names": None, "rebalance_timeout": -1, "topic_partitions": None}
        for _ in range(5):
            answer = await beat(node, "a", member_epoch=joined.member_epoch, **quiet)
            assert answer.error_code is ErrorCode.none
        assert known.computed == before
        await node.topic("plain", 1)
        answer = await beat(node, "a", member_epoch=joined.member_epoch, **quiet)
        assert len(answer.assignment.topic_partitions) == 2  # the name and the pattern
        assert known.computed == before + 1


async def test_an_expensive_pattern_leaves_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "CHEAP_PATTERN_MAX", 0)
    in_loop = []
    run = PatternWork.run

    def watched(self: PatternWork, elapsed_s: Any) -> frozenset[str]:
        try:
            asyncio.get_running_loop()
            in_loop.append(True)
        except RuntimeError:
            in_loop.append(False)
        return run(self, elapsed_s)

    monkeypatch.setattr(PatternWork, "run", watched)
    async with live(tmp_path) as node:
        await node.topic("orders", 1)
        await node.find("g")
        joined = await beat(node, "a", subscribed_topic_regex="o.*", subscribed_topic_names=None)
        assert joined.error_code is ErrorCode.none
        assert in_loop == [False]
