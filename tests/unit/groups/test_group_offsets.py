"""OffsetAndMetadata offsets, and the bytes of `__consumer_offsets`."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.groups.classic_messages import SavedGroup, SavedMember
from chronik.groups.consumer_messages import Part
from chronik.groups.offsets import GroupOffsets, OffsetAndMetadata
from chronik.groups.records import (
    GroupKey,
    Key,
    OffsetKey,
    PartKey,
    decode_committed,
    decode_group,
    decode_key,
    encode_committed,
    encode_group,
    encode_key,
)
from chronik.model import TopicPartition

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def at(offset: int, record_offset: int = 0, timestamp_ms: int = 0, expire_ms: int = -1) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, -1, "", timestamp_ms, record_offset, expire_ms)


def test_transactional_commits_count_when_the_transaction_does() -> None:
    offsets = GroupOffsets()
    offsets.commit(TP, at(5, record_offset=1))
    offsets.pend(9, TP, at(7, record_offset=2))
    assert offsets.is_unstable(TP)
    assert not offsets.is_unstable(OTHER)
    assert offsets.get(TP) == at(5, record_offset=1)
    offsets.end_transaction(9, commit=True)
    assert offsets.get(TP) == at(7, record_offset=2)
    offsets.pend(9, TP, at(8, record_offset=3))
    offsets.end_transaction(9, commit=False)
    assert offsets.get(TP) == at(7, record_offset=2)
    assert not offsets.is_unstable(TP)


def test_a_late_marker_does_not_undo_a_later_commit() -> None:
    offsets = GroupOffsets()
    offsets.pend(9, TP, at(5, record_offset=1))
    offsets.commit(TP, at(6, record_offset=2))
    offsets.end_transaction(9, commit=True)
    committed = offsets.get(TP)
    assert committed is not None
    assert committed.offset == 6


def test_deleting() -> None:
    offsets = GroupOffsets()
    offsets.commit(TP, at(1))
    offsets.pend(9, TP, at(2, record_offset=1))
    assert offsets.delete(TP)
    assert not offsets.delete(TP)
    assert offsets.is_empty


@pytest.mark.parametrize(
    ("committed", "empty_since_ms", "subscribed", "unstable", "expired"),
    [
        (at(1, timestamp_ms=0), 0, False, False, True),
        (at(1, timestamp_ms=500), 0, False, False, False),  # committed too recently
        (at(1, timestamp_ms=0), 500, False, False, False),  # the group has been empty for too short a time
        (at(1, timestamp_ms=0), None, True, False, False),  # still read by a member
        (at(1, timestamp_ms=0), None, False, False, True),  # members no longer read this topic
        (at(1, timestamp_ms=0), 0, False, True, False),  # a transaction may still change it
        (at(1, timestamp_ms=0, expire_ms=5_000), 0, False, False, False),  # asked for a longer time
        (at(1, timestamp_ms=900, expire_ms=950), 0, False, False, True),
    ],
)
def test_expiry(
    committed: OffsetAndMetadata, empty_since_ms: int | None, subscribed: bool, unstable: bool, expired: bool
) -> None:
    offsets = GroupOffsets()
    offsets.commit(TP, committed)
    if unstable:
        offsets.pend(1, TP, at(2, record_offset=1))
    gone = offsets.expired(
        now_ms=1_000,
        retention_ms=1_000,
        empty_since_ms=empty_since_ms,
        is_subscribed=lambda topic: subscribed,
    )
    assert gone == ([TP] if expired else [])


names = st.text(max_size=20)
optional_names = st.none() | names
int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(-1, 2**63 - 1)
keys = (
    st.builds(OffsetKey, names, st.builds(TopicPartition, names, int32))
    | st.builds(GroupKey, names)
    | st.builds(PartKey, names, st.sampled_from([Part.MEMBER, Part.TARGET, Part.CURRENT]), names)
    | st.builds(PartKey, names, st.sampled_from([Part.GROUP, Part.TARGET_EPOCH]), st.just(""))
)


@given(keys)
def test_keys_round_trip(key: Key) -> None:
    assert decode_key(encode_key(key)) == key


def test_unknown_kinds_of_records_are_skipped() -> None:
    assert decode_key(struct.pack(">hh", 12, 0)) is None


@given(st.builds(OffsetAndMetadata, int64, int32, names, int64, st.just(7), st.just(-1)))
def test_commits_round_trip(committed: OffsetAndMetadata) -> None:
    assert decode_committed(encode_committed(committed), record_offset=7) == committed


def test_a_commit_with_its_own_expiry_is_kept_in_the_old_format() -> None:
    committed = OffsetAndMetadata(5, -1, "m", 10, 0, 20)
    data = encode_committed(committed)
    assert data[:2] == b"\x00\x01"
    assert decode_committed(data, record_offset=0) == committed


def test_the_compact_format_of_commits_is_read() -> None:
    data = struct.pack(">hqi", 4, 42, 3) + b"\x02m" + struct.pack(">q", 9) + b"\x00"
    assert decode_committed(data, record_offset=1) == OffsetAndMetadata(42, 3, "m", 9, 1, -1)


members = st.builds(
    SavedMember,
    member_id=names,
    instance_id=optional_names,
    client_id=names,
    client_host=names,
    rebalance_timeout_ms=int32,
    session_timeout_ms=int32,
    subscription=st.binary(max_size=30),
    assignment=st.binary(max_size=30),
)


@given(
    st.builds(
        SavedGroup,
        protocol_type=names,
        generation=int32,
        protocol=optional_names,
        leader=optional_names,
        state_since_ms=int64,
        members=st.lists(members, max_size=4).map(tuple),
    )
)
def test_groups_round_trip(saved: SavedGroup) -> None:
    assert decode_group(encode_group(saved)) == saved


@given(st.binary(max_size=60))
def test_nonsense_in_the_log_is_a_value_error(data: bytes) -> None:
    for decode in (decode_key, decode_group, lambda bytes_: decode_committed(bytes_, record_offset=0)):
        try:
            decode(data)
        except ValueError:
            pass
