"""Quotas on the wire: whoever takes more than its share is told so and read later, and nobody else is."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chronik.client.apis import METADATA, PRODUCE
from chronik.client.connection import Connection
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.metadata import commands as c
from chronik.model import ErrorCode
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.security.quotas import CONSUMER_RATE, MUTATION_RATE, PRODUCER_RATE, REQUEST_SHARE, Quotas
from chronik.server.throttling import Cost, metered, throttle
from chronik.wire.api import ApiKey
from chronik.wire.produce import encode_produce_response
from chronik.wire.schema import (
    decode_response,
    encode_request,
    encode_response,
    response_has_field,
    schema_versions,
    tell_throttle_time,
)
from tests.unit.server.live import Live, live

RATE = 20_000.0
CLIENT = (("client-id", "greedy"),)


@asynccontextmanager
async def limited(folder: Path, **quotas: float) -> AsyncIterator[Live]:
    async with live(folder) as node:
        await node.topic("orders")
        await node.node.parts.metadata.submit(c.SetQuota(entity=CLIENT, values=quotas))
        yield node


class Client:
    """One connection, and how long its client is told to wait."""

    def __init__(self, node: Live, client_id: str) -> None:
        self._port = node.node.kafka_port
        self._client_id = client_id

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, api_key: ApiKey, version: int, **fields: Any) -> tuple[Any, float]:
        """The answer, and the throttle time in it."""
        self._writer.write(encode_request(api_key, version, 1, self._client_id, fields))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        answer = decode_response(api_key, version, await self._reader.readexactly(size))[1]
        return answer, getattr(answer, "throttle_time", datetime.timedelta()).total_seconds()

    async def produce(self, size: int, version: int = 9) -> float:
        records = bytes(build_batch([Record(key=None, value=bytes(size), timestamp_ms=1)]))
        data = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
        return (await self.ask(ApiKey.PRODUCE, version, acks=1, timeout=1000, topic_data=data))[1]

    async def seconds_of_a_question(self) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.ask(ApiKey.METADATA, 8, topics=None)
        return loop.time() - began


def results_of(answer: Any) -> tuple[Any, ...]:
    """Of the topics that were asked about."""
    return next(getattr(answer, name) for name in ("topics", "results", "responses") if hasattr(answer, name))


async def test_a_client_beyond_its_quota_waits_and_others_do_not(tmp_path: Path) -> None:
    async with (
        limited(tmp_path, producer_byte_rate=RATE) as node,
        Client(node, "greedy") as greedy,
        Client(node, "modest") as modest,
    ):
        # The burst of ten seconds, and one second more.
        told = [await client.produce(int(RATE * 11)) for client in (greedy, modest)]
        assert 0.9 < told[0] < 1.2
        assert told[1] == 0
        stats = node.node.parts.listener.stats
        assert stats.throttled_connections == 1
        muted, others = await asyncio.gather(greedy.seconds_of_a_question(), modest.seconds_of_a_question())
        assert muted > 0.8
        assert others < muted / 2
        assert await greedy.seconds_of_a_question() < 0.5, "it has paid"
        assert stats.throttled_seconds[PRODUCER_RATE] == pytest.approx(told[0], abs=0.01)
        assert stats.throttled_connections == 0


async def test_our_own_client_is_slowed_down_and_loses_nothing(tmp_path: Path) -> None:
    async with limited(tmp_path, producer_byte_rate=RATE) as node:
        where = BrokerAddress("127.0.0.1", node.node.kafka_port)
        connection = await Connection.open(where, ClientOptions(client_id="greedy"))
        records = bytes(build_batch([Record(key=None, value=bytes(int(RATE * 10.5)), timestamp_ms=1)]))
        data = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
        await connection.request(PRODUCE, {"acks": 1, "timeout": 1000, "topic_data": data})
        await connection.request(METADATA, {"topics": None})
        connection.close()


async def test_a_fetch_is_no_larger_than_its_quota_and_says_how_long_to_wait(tmp_path: Path) -> None:
    async with (
        limited(tmp_path, consumer_byte_rate=RATE) as node,
        Client(node, "modest") as writer,
        Client(node, "greedy") as reader,
    ):
        for _ in range(6):
            await writer.produce(int(RATE * 3))
        wanted = [{"topic": "orders", "partitions": [{"partition": 0, "fetch_offset": 0}]}]
        wanted[0]["partitions"][0]["partition_max_bytes"] = 1 << 30
        limits = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 30}
        sizes, told = [], []
        for _ in range(2):
            answer, wait = await reader.ask(ApiKey.FETCH, 12, topics=wanted, **limits)
            sizes.append(len(answer.responses[0].partitions[0].records))
            told.append(wait)
            if wait:
                break
        assert sizes[0] < RATE * 10 < RATE * 18, "what the bucket holds, not all there is"
        assert told[0] == 0 < told[1]
        assert node.node.parts.listener.stats.throttled_seconds[CONSUMER_RATE] > 0


async def test_time_on_the_event_loop_counts(tmp_path: Path) -> None:
    async with (
        limited(tmp_path, request_percentage=0.000_1) as node,
        Client(node, "greedy") as greedy,
        Client(node, "modest") as modest,
    ):
        _, told = await greedy.ask(ApiKey.METADATA, 8, topics=None)
        assert told == 1.0, "never longer than a window"
        assert (await modest.ask(ApiKey.METADATA, 8, topics=None))[1] == 0
        assert await greedy.seconds_of_a_question() > 0.8
        assert await greedy.produce(10) == 1.0, "known requests too"
        assert node.node.parts.listener.stats.throttled_seconds[REQUEST_SHARE] > 1


@pytest.mark.parametrize(
    ("api_key", "last_lenient", "fields"),
    [
        (ApiKey.CREATE_TOPICS, 5, {"topics": [{"name": "x", "num_partitions": 1, "replication_factor": 1}]}),
        (ApiKey.CREATE_PARTITIONS, 2, {"topics": [{"name": "orders", "count": 40, "assignments": None}]}),
        (ApiKey.DELETE_TOPICS, 4, {"topic_names": ["orders"]}),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else None,
)
async def test_changes_of_topics_wait_or_are_refused(
    tmp_path: Path, api_key: ApiKey, last_lenient: int, fields: dict[str, Any]
) -> None:
    """KIP-599: an error for clients that know it, a delay for those that do not."""
    async with limited(tmp_path, controller_mutation_rate=1.0) as node, Client(node, "greedy") as greedy:
        topic = {"name": "many", "num_partitions": 12, "replication_factor": 1}
        answer, told = await greedy.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=1000)
        assert answer.topics[0].error_code == ErrorCode.none, "nothing was owed"
        assert 1.5 < told < 2.1, "two more than the ten that the bucket holds"
        topics = dict(node.node.parts.metadata.state.topics)
        async with Client(node, "greedy") as again:
            refused, told = await again.ask(api_key, last_lenient + 1, **fields, timeout=1000)
            (result,) = results_of(refused)
            assert result.error_code == ErrorCode.throttling_quota_exceeded
            assert told > 1
            assert node.node.parts.metadata.state.topics == topics
        async with Client(node, "greedy") as old:
            served, told = await old.ask(api_key, last_lenient, **fields, timeout=1000)
            (result,) = results_of(served)
            assert result.error_code == ErrorCode.none
            assert told > 2
            assert node.node.parts.metadata.state.topics != topics
        assert node.node.parts.listener.stats.throttled_seconds[MUTATION_RATE] > 4


async def test_topics_are_not_created_on_first_use_by_those_who_owe(tmp_path: Path) -> None:
    async with limited(tmp_path, controller_mutation_rate=0.05) as node:
        for name, expected in (("one", ErrorCode.none), ("two", ErrorCode.leader_not_available)):
            async with Client(node, "greedy") as client:
                wanted = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
                answer, _ = await client.ask(ApiKey.METADATA, 8, **wanted)
                assert answer.topics[0].error_code == expected
        async with Client(node, "modest") as client:
            assert (await client.ask(ApiKey.METADATA, 8, **wanted))[0].topics[0].error_code == 0


def test_nodes_have_no_quotas() -> None:
    quotas = Quotas({(("user", None),): {PRODUCER_RATE: 1.0, REQUEST_SHARE: 1.0}})
    cost = Cost(ApiKey.PRODUCE, request_bytes=1_000, response_bytes=10, work_s=1.0)
    assert throttle(quotas, "Node:2", "raft", cost, 0.0) is None
    assert throttle(quotas, "Query:", "sql", cost, 0.0) is None
    assert throttle(quotas, "User:alice", "app", cost, 0.0) == (30.0, PRODUCER_RATE)
    assert throttle(quotas, "User:bob", "app", cost._replace(request_bytes=0), 0.0) == (1.0, REQUEST_SHARE)


def test_every_answer_with_a_place_for_it_tells_the_throttle_time() -> None:
    places = 0
    for api_key in ApiKey:
        low, high = schema_versions(api_key)
        for version in range(low, high + 1):
            frame = encode_response(api_key, version, 7, {})
            told = tell_throttle_time(api_key, version, frame, 1234)
            if not response_has_field(api_key, version, "throttle_time"):
                assert told == frame
                continue
            places += 1
            before, after = (decode_response(api_key, version, one, 4)[1] for one in (frame, bytes(told)))
            assert after.throttle_time == datetime.timedelta(milliseconds=1234)
            assert repr(after).replace(repr(after.throttle_time), repr(before.throttle_time)) == repr(before)
    assert places > 200


def test_the_refusal_of_a_version_without_a_schema_is_left_as_it_is() -> None:
    """Produce is offered from version 0 on, as librdkafka wants it, and refused below 3, with a quota too."""
    for version in range(schema_versions(ApiKey.PRODUCE)[0]):
        frame = encode_produce_response(version, 7, [])
        assert tell_throttle_time(ApiKey.PRODUCE, version, frame, 1234) == frame


async def test_only_work_is_measured_and_not_waits() -> None:
    seconds: list[float] = []
    freed = asyncio.Event()

    async def work() -> int:
        try:
            await asyncio.wait_for(freed.wait(), 0.05)
        except TimeoutError:
            return 7
        return 0

    assert await metered(work(), seconds.append) == 7
    assert len(seconds) >= 2
    assert sum(seconds) < 0.04
