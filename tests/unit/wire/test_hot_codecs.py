"""The hand-written codecs say what the schemas say, in every version."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.model import ErrorCode, PeerError, RecordError, TopicPartition
from chronik.wire.api import ApiKey, parse_request_header
from chronik.wire.fetch import FetchResult, decode_fetch, encode_fetch_response
from chronik.wire.produce import NodeEndpoint, ProduceResult, decode_produce, encode_produce_response
from chronik.wire.schema import decode_response, encode_request

ORDERS = UUID(int=7)
names = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=200)
partitions = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=300)), max_size=3)
topics = st.lists(st.tuples(names, st.integers(1, 2**100), partitions), max_size=3)


def body(api_key: int, version: int, fields: dict[str, Any]) -> tuple[memoryview, int]:
    frame = memoryview(encode_request(api_key, version, 9, "client", fields))[4:]
    _, offset = parse_request_header(frame)
    return frame, offset


@given(topics, st.none() | names, st.sampled_from((-1, 0, 1)), st.integers(3, 13))
def test_produce_requests(asked: list[Any], transactional_id: str | None, acks: int, version: int) -> None:
    fields = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 1234,
        "topic_data": [
            {
                "name": name,
                "topic_id": UUID(int=number),
                "partition_data": [{"index": index, "records": data} for index, data in parts],
            }
            for name, number, parts in asked
        ],
    }
    request = decode_produce(*body(ApiKey.PRODUCE, version, fields), version)
    head = request.head
    assert (head.transactional_id, head.acks, head.timeout_ms) == (transactional_id, acks, 1234)
    assert [
        (tp.topic or topic_id, tp.partition, None if records is None else bytes(records))
        for (tp, topic_id), records in zip(head.targets, request.records, strict=True)
    ] == [
        (UUID(int=number) if version >= 13 else name, index, data)
        for name, number, parts in asked
        for index, data in parts
    ]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_produce_responses(version: int, count: int, fails: bool) -> None:
    code = ErrorCode.not_leader_or_follower if fails else ErrorCode.none
    results = [
        ProduceResult(
            tp=TopicPartition("orders", index),
            topic_id=ORDERS,
            error_code=code,
            base_offset=100 + index,
            log_append_time_ms=5,
            log_start_offset=6,
            error_message="no" if fails else None,
            record_errors=[RecordError(2, "no key"), RecordError(7, "no key either")] if fails else (),
            current_leader=(3, 4) if fails else None,
        )
        for index in range(count)
    ]
    endpoints = [NodeEndpoint(3, "host", 9092, "rack")] if fails else None
    frame = encode_produce_response(version, 77, results, endpoints)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, response = decode_response(ApiKey.PRODUCE, version, bytes(frame), 4)
    assert correlation_id == 77
    (topic,) = response.responses
    assert (topic.topic_id == ORDERS) if version >= 13 else (topic.name == "orders")
    assert [one.index for one in topic.partition_responses] == list(range(count))
    for one in topic.partition_responses:
        assert (one.error_code, one.base_offset) == (code, 100 + one.index)
        assert version < 5 or one.log_start_offset == 6
        if version >= 8:
            assert one.error_message == ("no" if fails else None)
            named = [(error.batch_index, error.batch_index_error_message) for error in one.record_errors]
            assert named == ([(2, "no key"), (7, "no key either")] if fails else [])
        if version >= 10 and fails:
            assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (3, 4)
    if version >= 10 and fails:
        assert [node.host for node in response.node_endpoints] == ["host"]


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_requests(version: int) -> None:
    fields = {
        "replica_id": 5,
        "replica_state": {"replica_id": 5, "replica_epoch": 1},
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 1,
        "session_id": 11,
        "session_epoch": 12,
        "topics": [
            {
                "topic": "orders",
                "topic_id": ORDERS,
                "partitions": [
                    {
                        "partition": index,
                        "current_leader_epoch": 3,
                        "fetch_offset": 40 + index,
                        "last_fetched_epoch": 2,
                        "partition_max_bytes": 99,
                    }
                    for index in range(2)
                ],
            }
        ],
        "forgotten_topics_data": [{"topic": "old", "topic_id": UUID(int=8), "partitions": [1, 2]}],
        "rack_id": "r",
    }
    request = decode_fetch(*body(ApiKey.FETCH, version, fields), version)
    assert (request.replica_id, request.max_wait_ms, request.max_bytes) == (5, 500, 1000)
    assert [one.fetch_offset for one in request.partitions] == [40, 41]
    first = request.partitions[0]
    assert (first.topic, first.topic_id) == (("", ORDERS) if version >= 13 else ("orders", UUID(int=0)))
    assert first.current_leader_epoch == (3 if version >= 9 else -1)
    assert first.last_fetched_epoch == (2 if version >= 12 else -1)
    assert (request.session_id, request.session_epoch) == ((11, 12) if version >= 7 else (0, -1))
    assert [one.partition for one in request.forgotten] == ([1, 2] if version >= 7 else [])
    assert request.rack_id == ("r" if version >= 11 else "")


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_responses(version: int) -> None:
    results = [
        FetchResult("a", UUID(int=1), 0, high_watermark=9, last_stable_offset=8, log_start_offset=1),
        FetchResult("a", UUID(int=1), 1, aborted=[(5, 6)], buffers=[b"xy", memoryview(b"z")], size_bytes=3),
        FetchResult("b", UUID(int=2), 0, error_code=ErrorCode.fenced_leader_epoch, current_leader=(2, 3)),
        FetchResult("b", UUID(int=2), 1, diverging=(4, 50), preferred_read_replica=2),
    ]
    where = [NodeEndpoint(2, "h", 1)]
    frame = b"".join(encode_fetch_response(version, 5, results, session_id=6, endpoints=where))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, response = decode_response(ApiKey.FETCH, version, frame, 4)
    assert correlation_id == 5
    assert version < 7 or response.session_id == 6
    found = [part for topic in response.responses for part in topic.partitions]
    assert [part.partition_index for part in found] == [0, 1, 0, 1]
    assert [part.high_watermark for part in found] == [9, -1, -1, -1]
    assert bytes(found[1].records) == b"xyz"
    assert [one.producer_id for one in found[1].aborted_transactions] == [5]
    assert found[2].error_code == ErrorCode.fenced_leader_epoch
    if version >= 12:
        assert (found[2].current_leader.leader_id, found[3].diverging_epoch.end_offset) == (2, 50)
    if version >= 16:
        assert [node.host for node in response.node_endpoints] == ["h"]


@pytest.mark.parametrize(
    ("api_key", "decode"), [(ApiKey.PRODUCE, decode_produce), (ApiKey.FETCH, decode_fetch)]
)
def test_damaged_requests_are_read_or_refused(api_key: ApiKey, decode: Any) -> None:
    """Nothing but PeerError, and nothing outside the frame."""
    pick = random.Random(3)
    for version in range(4, 14):
        fields: dict[str, Any] = {"topics": [{"topic": "t", "topic_id": ORDERS, "partitions": [{}]}]}
        if api_key == ApiKey.PRODUCE:
            data = {"index": 0, "records": b"abc" * 50}
            fields = {"topic_data": [{"name": "t", "topic_id": ORDERS, "partition_data": [data]}]}
        frame, offset = body(api_key, version, fields)
        for _ in range(300):
            noise = bytearray(frame)
            for _ in range(pick.randrange(1, 4)):
                noise[pick.randrange(offset, len(noise))] = pick.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            cut = memoryview(noise)[: pick.randrange(offset, len(noise) + 1)]
            try:
                decode(cut, offset, version)
            except PeerError:
                continue
