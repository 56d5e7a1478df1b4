"""Produce requests of one connection are appended in the order in which they came, whatever they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chronik.client.apis import PRODUCE, Api
from chronik.client.connection import Connection
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.model import ErrorCode, TopicPartition
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.server.produce_queue import ProduceQueue
from chronik.transactions.markers import Marker
from chronik.transactions.verification import TransactionVerifier
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live

PRODUCE_V12 = Api(ApiKey.PRODUCE, 12, 12)
TIMEOUT_MS = 10_000


async def connect(node: Live) -> Connection:
    return await Connection.open(BrokerAddress("127.0.0.1", node.node.kafka_port), ClientOptions())


async def identity(node: Live, transactional_id: str | None) -> dict[str, int]:
    answer = await node.call(
        ApiKey.INIT_PRODUCER_ID,
        5,
        transactional_id=transactional_id,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    return {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


def request(
    topic: str, sequences: Mapping[int, int], producer: Mapping[str, int], transactional_id: str | None
) -> dict[str, Any]:
    """One record to each partition, with its sequence."""
    batches = {
        partition: build_batch(
            [Record(key=None, value=b"value", timestamp_ms=1)],
            base_sequence=sequence,
            is_transactional=transactional_id is not None,
            **producer,
        )
        for partition, sequence in sequences.items()
    }
    data = [{"index": partition, "records": batch} for partition, batch in batches.items()]
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": TIMEOUT_MS,
        "topic_data": [{"name": topic, "partition_data": data}],
    }


def codes(answers: list[Any]) -> list[ErrorCode]:
    return [
        ErrorCode(partition.error_code)
        for answer in answers
        for topic in answer.responses
        for partition in topic.partition_responses
    ]


async def test_a_request_does_not_overtake_one_that_asks_the_coordinator(tmp_path: Path) -> None:
    """Partition 0 is in the transaction, partition 1 is not yet: a request with both has to wait."""

    async with live(tmp_path) as node:
        await node.topic("orders", partitions=3)
        await node.find("billing", key_type=1)
        producer = await identity(node, "billing")
        connection = await connect(node)
        sequences = {0: 0}
        first = await connection.request(PRODUCE_V12, request("orders", sequences, producer, "billing"))
        assert codes([first]) == [ErrorCode.none]
        pipelined = [{0: 1, 1: 0}, {0: 2}, {0: 3, 1: 1, 2: 0}, {0: 4, 1: 2}, {0: 5, 2: 1}]
        answers = await asyncio.gather(
            *(
                connection.request(PRODUCE_V12, request("orders", each, producer, "billing"))
                for each in pipelined
            )
        )
        assert set(codes(answers)) == {ErrorCode.none}
        connection.close()


async def test_a_request_does_not_overtake_one_whose_topic_is_being_created(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        producer = await identity(node, None)
        connection = await connect(node)
        sending = []
        for sequence in range(40):
            fields = request("made-on-first-use", {0: sequence}, producer, None)
            sending.append(asyncio.create_task(connection.request(PRODUCE, fields)))
            await asyncio.sleep(0)  # a turn of the loop: some requests come while the topic is made
        answers = await asyncio.gather(*sending)
        assert set(codes(answers)) == {ErrorCode.none}
        connection.close()


async def test_places_are_taken_at_once_and_served_in_order() -> None:
    queue = ProduceQueue()
    served: list[int] = []

    async def serve(number: int, place: Any) -> None:
        async with place:
            served.append(number)

    first, second, third = (queue.take_place() for _ in range(3))
    assert queue.is_busy
    later = [asyncio.create_task(serve(number, place)) for number, place in ((3, third), (2, second))]
    await asyncio.sleep(0)
    assert served == []
    await serve(1, first)
    await asyncio.gather(*later)
    assert served == [1, 2, 3]
    assert not queue.is_busy


async def test_a_cancelled_place_holds_up_nobody() -> None:
    queue = ProduceQueue()
    first, second, third = (queue.take_place() for _ in range(3))
    waiting = asyncio.create_task(second.__aenter__())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with first:
        pass
    async with asyncio.timeout(10), third:
        pass
    assert not queue.is_busy


async def test_what_a_marker_ends_while_the_coordinator_is_asked_is_asked_about_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 is in the transaction until a marker ends it there; then the batch would open a new one."""
    async with live(tmp_path) as node:
        await node.topic("orders", partitions=2)
        await node.find("billing", key_type=1)
        producer = await identity(node, "billing")
        connection = await connect(node)
        await connection.request(PRODUCE_V12, request("orders", {0: 0}, producer, "billing"))
        services = node.node.parts.services
        real = TransactionVerifier.verify
        asked: list[list[int]] = []

        async def verify(self: TransactionVerifier, *given: Any, **how: bool) -> None:
            asked.append(sorted(tp.partition for tp in given[2]))
            await real(self, *given, **how)
            if len(asked) == 1:
                marker = Marker(**producer, coordinator_epoch=0, is_commit=False)
                taken = await services.transactions.markers.write_local(marker, [TopicPartition("orders", 0)])
                assert set(taken.values()) == {ErrorCode.none}

        monkeypatch.setattr(TransactionVerifier, "verify", verify)
        answer = await connection.request(PRODUCE_V12, request("orders", {0: 1, 1: 0}, producer, "billing"))
        assert codes([answer]) == [ErrorCode.none] * 2
        assert asked == [[1], [0, 1]]
        connection.close()
