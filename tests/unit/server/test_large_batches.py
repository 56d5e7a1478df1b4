"""Batches that take long to look into: beside the loop, in the order of their connection, checked again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from chronik.admin.context import MESSAGE_READS_AT_ONCE
from chronik.client import Consumer
from chronik.client.apis import PRODUCE, Api
from chronik.client.connection import Connection
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.metadata.commands import CreateTopic, DeleteTopic, SetConfigs
from chronik.model import BATCH_RECORDS_MAX, ErrorCode, TopicPartition
from chronik.records import body
from chronik.records.batch import TRANSACTIONAL_MASK, check_batch, headers
from chronik.records.compression import Compression
from chronik.replication.admission import LOOP_BYTES_MAX, LOOP_RECORDS_MAX
from chronik.replication.partition import Partition
from chronik.transactions.markers import Marker
from chronik.transactions.verification import TransactionVerifier
from chronik.wire.api import ApiKey
from tests.unit.admin.support import Http
from tests.unit.records.bombs import crowd
from tests.unit.server.live import Live, live
from tests.unit.server.test_produce_order import codes, identity

NOW_MS = 1_700_000_000_000
MANY = LOOP_RECORDS_MAX + 1
COMPACTED = {"cleanup.policy": "compact"}
PRODUCE_V12 = Api(ApiKey.PRODUCE, 12, 12)


class Spy:
    """Every batch that was looked into, wherever it was."""

    def __init__(self) -> None:
        self.on_loop: list[int] = []
        self.beside: list[int] = []

    def note(self, size: int) -> None:
        here = self.on_loop if threading.current_thread() is threading.main_thread() else self.beside
        here.append(size)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spy]:
    spy, real = Spy(), body.decompress

    def decompress(*given: Any) -> bytes:
        found = real(*given)
        spy.note(len(found))
        return found

    monkeypatch.setattr(body, "decompress", decompress)
    yield spy
    assert max(spy.on_loop, default=0) <= LOOP_BYTES_MAX


async def create(node: Live, name: str, partitions: int = 1, **configs: str) -> None:
    parts = node.node.parts
    assignments = ((node.node.settings.node_id,),) * partitions
    given = {key.replace("_", "."): value for key, value in configs.items()}
    await parts.metadata.submit(
        CreateTopic(
            name=name,
            topic_id=parts.services.new_uuid(),
            assignments=assignments,
            configs={"max.message.bytes": "100000000", **given},
        )
    )


async def connect(node: Live) -> Connection:
    return await Connection.open(BrokerAddress("127.0.0.1", node.node.kafka_port), ClientOptions())


def fields(topic: str, *batches: bytearray, acks: int = -1, **more: Any) -> dict[str, Any]:
    """One batch to each partition."""
    data = [{"index": index, "records": batch} for index, batch in enumerate(batches)]
    return {
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": data}],
        **more,
    }


def at(node: Live, topic: str, partition: int = 0) -> Partition:
    return node.node.parts.replicas.leader(TopicPartition(topic, partition))


def stored(partition: Partition) -> list[int]:
    """Record counts of the batches in a log that is all in memory."""
    found = [check_batch(batch.view) for batch in partition.log.tail]
    assert [one.base_offset for one in found] == sorted(one.base_offset for one in found)
    return [one.record_count for one in found]


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize(
    ("configs", "how"),
    [
        (COMPACTED, {}),
        ({}, {"base_timestamp": -1, "max_timestamp": 0}),
        ({}, {"max_timestamp": 0}),
        ({"compression.type": "gzip"}, {}),
        ({"message.timestamp.type": "LogAppendTime", **COMPACTED}, {}),
    ],
    ids=["compacted", "no timestamps", "a wrong maximum", "another codec", "append time"],
)
async def test_they_are_looked_into_beside_the_loop(
    tmp_path: Path, looks: Spy, codec: Compression, configs: dict[str, str], how: dict[str, int]
) -> None:
    async with live(tmp_path, now_ms=lambda: NOW_MS) as node:
        await create(node, "t", **{key.replace(".", "_"): value for key, value in configs.items()})
        connection = await connect(node)
        batch = crowd(MANY, codec, **{"base_timestamp": NOW_MS, **how})
        for _ in range(2):  # the second request is one that the connection knows already
            assert codes([await connection.request(PRODUCE, fields("t", batch))]) == [ErrorCode.none]
        connection.close()
        assert stored(at(node, "t")) == [MANY, MANY]
        ((_, header), *_) = headers(at(node, "t").log.tail[-1].view)
        if "compression.type" in configs:
            assert header.compression == Compression.GZIP
        if how:
            assert header.max_timestamp == max(header.base_timestamp, -1)
    recompresses = "compression.type" in configs and codec is Compression.GZIP
    assert looks.on_loop == []
    assert len(looks.beside) == (0 if recompresses else 2)


async def test_what_is_quickly_looked_into_stays_on_the_loop(tmp_path: Path, looks: Spy) -> None:
    async with live(tmp_path) as node:
        await create(node, "t", cleanup_policy="compact")
        connection = await connect(node)
        for codec in Compression:
            answer = await connection.request(PRODUCE, fields("t", crowd(LOOP_RECORDS_MAX, codec)))
            assert codes([answer]) == [ErrorCode.none]
        connection.close()
    assert (len(looks.on_loop), looks.beside) == (len(Compression), [])


@pytest.mark.parametrize("acks", [-1, 1])
async def test_later_requests_of_the_connection_wait(tmp_path: Path, looks: Spy, acks: int) -> None:
    """An idempotent producer would else hear of a gap in its sequence."""
    async with live(tmp_path) as node:
        await create(node, "t", partitions=2, cleanup_policy="compact")
        producer = await identity(node, None)
        connection = await connect(node)
        sending, sequence = [], 0
        for count in (MANY, 1, 1, MANY, 3, MANY + 1, 2):
            made = crowd(count, base_sequence=sequence, **producer)
            small = crowd(1, base_sequence=len(sending), **producer)
            sequence += count
            request = fields("t", made, small, acks=acks)
            sending.append(asyncio.create_task(connection.request(PRODUCE, request)))
        answers = await asyncio.gather(*sending)
        assert set(codes(answers)) == {ErrorCode.none}
        assert stored(at(node, "t")) == [MANY, 1, 1, MANY, 3, MANY + 1, 2]
        assert stored(at(node, "t", 1)) == [1] * 7
        again = await connection.request(PRODUCE, fields("t", crowd(MANY, base_sequence=0, **producer)))
        assert codes([again]) != [ErrorCode.none], "it is older than what is remembered of the producer"
        connection.close()
    assert len(looks.beside) == 4


async def test_refusals_are_those_of_any_other_batch(tmp_path: Path, looks: Spy) -> None:
    async with live(tmp_path, now_ms=lambda: NOW_MS) as node:
        await create(node, "compacted", cleanup_policy="compact")
        await create(node, "timed")
        await create(node, "plain", compression_type="uncompressed", max_message_bytes="20000")
        connection = await connect(node)
        keyless = crowd(MANY, has_key=False, base_timestamp=NOW_MS)
        late = crowd(MANY, base_timestamp=NOW_MS + 10**10)
        too_many = crowd(10, last_offset_delta=BATCH_RECORDS_MAX, record_count=BATCH_RECORDS_MAX + 1)
        for topic, batch, code in (
            ("compacted", keyless, ErrorCode.invalid_record),
            ("timed", late, ErrorCode.invalid_timestamp),
            ("plain", crowd(MANY, base_timestamp=NOW_MS), ErrorCode.message_too_large),
            ("timed", too_many, ErrorCode.message_too_large),
        ):
            answer = await connection.request(PRODUCE, fields(topic, batch))
            assert codes([answer]) == [code]
            if code in (ErrorCode.invalid_record, ErrorCode.invalid_timestamp):
                assert len(answer.responses[0].partition_responses[0].record_errors) == 1_000
        connection.close()
    assert (looks.on_loop, len(looks.beside)) == ([], 3)


def while_it_is_looked_into(monkeypatch: pytest.MonkeyPatch, happens: Any) -> list[int]:
    """Let something happen once, after the first look and before its append."""
    real, seen = Partition.look_into, []

    async def look_into(self: Partition, *given: Any) -> Any:
        seen.append(1)
        found = await real(self, *given)
        if len(seen) == 1:
            await happens(self)
        return found

    monkeypatch.setattr(Partition, "look_into", look_into)
    return seen


async def test_a_topic_that_changes_meanwhile_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live(tmp_path, now_ms=lambda: NOW_MS) as node:
        await create(node, "t")
        metadata = node.node.parts.metadata

        async def become_compacted(partition: Partition) -> None:
            await metadata.submit(SetConfigs(resource_type=2, name="t", values={"cleanup.policy": "compact"}))
            assert partition.config.is_compacted

        seen = while_it_is_looked_into(monkeypatch, become_compacted)
        connection = await connect(node)
        batch = crowd(MANY, has_key=False, base_timestamp=-1)
        answer = await connection.request(PRODUCE, fields("t", batch))
        assert codes([answer]) == [ErrorCode.invalid_record]
        assert len(seen) == 2
        connection.close()


async def test_a_topic_that_is_deleted_meanwhile_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live(tmp_path, now_ms=lambda: NOW_MS) as node:
        await create(node, "t")
        metadata = node.node.parts.metadata
        topic_id = metadata.state.topics["t"].topic_id

        async def be_replaced(_: Partition) -> None:
            await metadata.submit(DeleteTopic(topic_id=topic_id))
            await create(node, "t")

        while_it_is_looked_into(monkeypatch, be_replaced)
        connection = await connect(node)
        request = fields("t", crowd(MANY, base_timestamp=-1))
        request["topic_data"][0] = {**request["topic_data"][0], "topic_id": topic_id}
        answer = await connection.request(Api(ApiKey.PRODUCE, 13, 13), request)
        assert codes([answer]) == [ErrorCode.unknown_topic_id]
        assert stored(at(node, "t")) == []
        connection.close()


async def test_a_transaction_that_a_marker_ends_meanwhile_is_asked_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch would else open a transaction that nobody ends."""
    async with live(tmp_path, now_ms=lambda: NOW_MS) as node:
        await create(node, "t")
        await node.find("billing", key_type=1)
        producer = await identity(node, "billing")
        asked: list[list[int]] = []
        real = TransactionVerifier.verify

        async def verify(self: TransactionVerifier, *given: Any, **how: bool) -> None:
            asked.append(sorted(tp.partition for tp in given[2]))
            await real(self, *given, **how)

        monkeypatch.setattr(TransactionVerifier, "verify", verify)
        services = node.node.parts.services

        async def be_ended(_: Partition) -> None:
            marker = Marker(**producer, coordinator_epoch=0, is_commit=False)
            taken = await services.transactions.markers.write_local(marker, [TopicPartition("t", 0)])
            assert set(taken.values()) == {ErrorCode.none}

        while_it_is_looked_into(monkeypatch, be_ended)
        connection = await connect(node)
        sequence = 0
        for count in (1, MANY):
            is_transactional = {"attributes": TRANSACTIONAL_MASK | Compression.ZSTD, **producer}
            batch = crowd(count, base_timestamp=-1, base_sequence=sequence, **is_transactional)
            sequence += count
            request = fields("t", batch, transactional_id="billing")
            answer = await connection.request(PRODUCE_V12, request)
            assert codes([answer]) == [ErrorCode.none]
        assert asked == [[0], [0]]
        connection.close()


async def test_few_views_of_records_are_decoded_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may hold as much as one batch may become."""
    under_way, most = 0, 0
    real = Consumer.records

    async def records(self: Consumer, *given: Any) -> AsyncIterator[Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            async for one in real(self, *given):
                yield one
        finally:
            under_way -= 1

    monkeypatch.setattr(Consumer, "records", records)
    async with live(tmp_path) as node:
        await create(node, "t")
        connection = await connect(node)
        await connection.request(PRODUCE, fields("t", crowd(3)))
        connection.close()
        http = Http(node.node.http_port)
        path = "/admin/topics/t/messages?partition=0&offset=0"
        shown = await asyncio.gather(*(http.get(path) for _ in range(8)))
        assert [len(one.json["messages"]) for one in shown] == [3] * 8
    assert most == MESSAGE_READS_AT_ONCE


async def test_readers_look_into_them_beside_the_loop_too(tmp_path: Path, looks: Spy) -> None:
    """Offsets by time and the console's view of records."""
    async with live(tmp_path, now_ms=lambda: NOW_MS) as node:
        await create(node, "t")
        connection = await connect(node)
        batch = crowd(10 * MANY, value_bytes=20, base_timestamp=NOW_MS, max_timestamp=NOW_MS + 1)
        assert codes([await connection.request(PRODUCE, fields("t", batch))]) == [ErrorCode.none]
        connection.close()
        assert (looks.on_loop, looks.beside) == ([], []), "nothing makes a leader look into it"
        partition = {"partition_index": 0, "timestamp": NOW_MS, "current_leader_epoch": -1}
        topics = [{"name": "t", "partitions": [partition]}]
        found = await node.call(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        assert found.topics[0].partitions[0].offset == 0
        assert len(looks.beside) == 1
        shown = await Http(node.node.http_port).get("/admin/topics/t/messages?partition=0&offset=0&limit=5")
        assert len(shown.json["messages"]) == 5
        assert len(looks.beside) == 2
    assert looks.on_loop == []
