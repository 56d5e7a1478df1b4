"""Metadata answers out of kept bytes are those that would be made anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.metadata import commands as c
from chronik.metadata.snapshot import decode_snapshot, encode_snapshot
from chronik.metadata.state import ClusterState
from chronik.server import topic_answers
from chronik.server.authorized import NOT_REQUESTED
from chronik.server.topic_answers import LAYOUTS, PATIENCE, TopicAnswers, describe_topic
from chronik.wire.api import ApiKey
from chronik.wire.schema import check_fields, encode_element, encode_response
from tests.unit.metadata.test_state import LIVELY, histories
from tests.unit.server.harness import Harness

VERSIONS = range(14)


def anew(state: ClusterState, version: int, operations: int) -> bytes:
    topics = [describe_topic(state, topic, operations) for topic in state.topics.values()]
    check_fields(ApiKey.METADATA, "response", {"topics": topics})
    return encode_response(ApiKey.METADATA, version, 1, {"topics": topics})


def kept(answers: TopicAnswers, state: ClusterState, version: int, operations: int) -> bytes:
    topics = answers.encoded(state, version, [(topic, operations) for topic in state.topics.values()])
    return encode_response(ApiKey.METADATA, version, 1, {"topics": topics})


@settings(max_examples=150, deadline=None)
@given(
    histories,
    st.lists(
        st.tuples(st.sampled_from(VERSIONS), st.sampled_from([NOT_REQUESTED, 0, 8])), min_size=1, max_size=3
    ),
    st.integers(0, 25),
    st.sampled_from([0, 700, 10_000]),
)
def test_kept_answers_are_those_that_would_be_made_anew(
    history: list[Any], asked: list[tuple[int, int]], snapshot_at: int, bytes_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(topic_answers, "KEPT_BYTES_MAX", bytes_max)
        answers, state = TopicAnswers(), ClusterState()
        for index, command in enumerate([*LIVELY, *history], 1):
            state.apply(command, index)
            if index == snapshot_at:
                state = decode_snapshot(encode_snapshot(state))
            for version, operations in asked:
                assert kept(answers, state, version, operations) == anew(state, version, operations)
            assert answers.kept_bytes <= bytes_max
            assert answers.kept_bytes == sum(len(one.answer) + 300 for one in answers._kept.values())


def noting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of topics, as they are described."""
    described: list[str] = []

    def noted(state: ClusterState, topic: Any, operations: int) -> dict[str, Any]:
        described.append(topic.name)
        return describe_topic(state, topic, operations)

    monkeypatch.setattr(topic_answers, "describe_topic", noted)
    return described


@pytest.mark.parametrize("late", [False, True])
def test_one_topic_too_many_leaves_the_others_kept(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Requests for all topics, in the same order each time, found nothing at all."""
    harness = Harness()
    names = [f"topic-{number}" for number in range(20)]
    for name in names:
        harness.topic(name)
    described = noting(monkeypatch)
    state, answers = harness.store.state, TopicAnswers()
    kept(answers, state, 12, 0)
    monkeypatch.setattr(topic_answers, "KEPT_BYTES_MAX", answers.kept_bytes - 1)
    answers = TopicAnswers()
    if late:  # the topic without a place is asked for first
        answers.encoded(state, 12, [(state.topics[name], 0) for name in names[1:]])
    else:
        kept(answers, state, 12, 0)
    for _ in range(3):
        described.clear()
        assert kept(answers, state, 12, 0) == anew(state, 12, 0)
        assert described == [names[0] if late else names[-1]]
    assert answers.kept_bytes < topic_answers.KEPT_BYTES_MAX


def test_a_version_that_nobody_asks_for_any_more_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    for number in range(20):
        harness.topic(f"topic-{number}")
    state, answers = harness.store.state, TopicAnswers()
    kept(answers, state, 12, 0)
    monkeypatch.setattr(topic_answers, "KEPT_BYTES_MAX", answers.kept_bytes)
    kept(answers, state, 9, 0)
    for _ in range(PATIENCE + 1):
        kept(answers, state, 12, 0)
    described = noting(monkeypatch)
    kept(answers, state, 12, 0)
    assert described == []


@pytest.mark.parametrize("other", [(9, 0), (12, 8)], ids=["another version", "other rights"])
def test_two_kinds_of_clients_do_not_push_each_other_out(
    monkeypatch: pytest.MonkeyPatch, other: tuple[int, int]
) -> None:
    """What does not fit is made anew each time; the rest is not, though they ask in turn."""
    harness = Harness()
    for number in range(20):
        harness.topic(f"topic-{number}")
    state, answers = harness.store.state, TopicAnswers()
    kept(answers, state, 12, 0)
    monkeypatch.setattr(topic_answers, "KEPT_BYTES_MAX", answers.kept_bytes * 3 // 2)
    kept(answers, state, *other)
    described = noting(monkeypatch)
    for _ in range(3 * PATIENCE):
        kept(answers, state, *other)
        kept(answers, state, 12, 0)
    assert len(described) <= 11 * 3 * PATIENCE, "about half of the topics in every other call"
    assert len(set(described)) <= 11


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_of_one_layout_have_the_same_bytes(version: int) -> None:
    """So that clients of 3.x and 4.x share what is kept."""
    harness = Harness()
    harness.topic("one", (1, 2), (2, 1))
    state = harness.store.state
    (topic,) = state.topics.values()
    fields = describe_topic(state, topic, 8)
    layout = max(one for one in LAYOUTS if one <= version)
    assert encode_element(ApiKey.METADATA, version, "topics", fields) == encode_element(
        ApiKey.METADATA, layout, "topics", fields
    )


def test_what_did_not_change_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    harness.topic("one")
    two = harness.topic("two")
    described = noting(monkeypatch)
    for _ in range(3):
        response = harness.call(ApiKey.METADATA, 12, topics=None)
        assert {topic.name for topic in response.topics} == {"one", "two"}
    assert described == ["one", "two"]
    harness.submit(c.ChangePartition(topic_id=two, partition=0, partition_epoch=0, isr=(1, 2)))
    response = harness.call(ApiKey.METADATA, 12, topics=None)
    assert {topic.name: topic.partitions[0].isr_nodes for topic in response.topics} == {
        "one": (1, 2, 3),
        "two": (1, 2),
    }
    assert described == ["one", "two", "two"]
    harness.submit(c.FenceBroker(broker_id=3, broker_epoch=harness.store.state.brokers[3].epoch))
    response = harness.call(ApiKey.METADATA, 12, topics=None)
    assert [topic.partitions[0].offline_replicas for topic in response.topics] == [(3,), (3,)]
