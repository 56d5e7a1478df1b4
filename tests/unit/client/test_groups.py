"""Reading what members of other clients were assigned, and times as people write them."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_assignment.v0.data import TopicPartition as AssignedTopic
from kio.serial import entity_writer

from chronik.cli.client import CommandFailed
from chronik.cli.group_reset import parse_time_ms
from chronik.client.groups import read_assignment
from chronik.model import PeerError, TopicPartition

topics = st.dictionaries(
    st.text(min_size=1, max_size=20), st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=5
)


def encoded(assigned: dict[str, list[int]], version: int) -> bytes:
    out = io.BytesIO()
    entity_writer(ConsumerProtocolAssignment)(
        out,
        ConsumerProtocolAssignment(
            assigned_partitions=tuple(
                AssignedTopic(topic=topic, partitions=tuple(numbers))  # type: ignore[arg-type]
                for topic, numbers in assigned.items()
            )
        ),
    )
    return version.to_bytes(2, "big") + out.getvalue()


@given(topics, st.integers(0, 3))
def test_an_assignment_is_read_whatever_its_version(assigned: dict[str, list[int]], version: int) -> None:
    expected = tuple(TopicPartition(t, n) for t, numbers in assigned.items() for n in numbers)
    assert read_assignment(encoded(assigned, version)) == expected


@given(st.binary(max_size=40))
def test_noise_is_refused_or_read_but_never_breaks(noise: bytes) -> None:
    try:
        read_assignment(noise)
    except PeerError:
        pass


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("1700000000000", 1_700_000_000_000), ("1970-01-01T00:00:01Z", 1_000), ("1970-01-01T01:00:00+01:00", 0)],
)
def test_times(text: str, milliseconds: int) -> None:
    assert parse_time_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "-5"])
def test_what_is_no_time_is_told_with_an_example(text: str) -> None:
    with pytest.raises(CommandFailed, match="2026-01-31T12:00:00Z"):
        parse_time_ms(text)
