"""The client against a broker at the wire level: routing, retries, order, honesty about what is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chronik.client import (
    ClientOptions,
    Cluster,
    Consumer,
    FetchOptions,
    Producer,
    Unanswered,
    Unreachable,
)
from chronik.client.admin import Admin, CreatedTopic, NewTopic
from chronik.client.offsets import EARLIEST, LATEST
from chronik.model import ErrorCode, PeerError, RequestError, TopicPartition, Unavailable
from chronik.records.batch import headers
from chronik.records.compression import Compression
from chronik.records.reader import Record, read_all_records
from chronik.records.writer import build_batch, build_marker
from chronik.wire.api import ApiKey
from tests.unit.client.broker import DROP, HANG, Broker

TP = TopicPartition("t", 0)
QUICK = ClientOptions(deadline_ms=5_000, retry_backoff_ms=1, retry_backoff_ms_max=5)


def run(scenario: Callable[[Broker, Cluster], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with Broker() as broker:
            chosen = ClientOptions(**{"deadline_ms": 5_000, "retry_backoff_ms": 1, **options})
            async with asyncio.timeout(20), Cluster(broker.address, chosen) as cluster:
                await scenario(broker, cluster)

    asyncio.run(main())


def values(broker: Broker, tp: TopicPartition = TP) -> list[bytes | None]:
    return [record.value for record in read_all_records(broker.logs[tp])]


def test_records_arrive_in_order_with_their_offsets() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        async with Producer(cluster) as producer:
            deliveries = [await producer.send("t", b"%d" % i) for i in range(100)]
            assert [await delivery for delivery in deliveries] == list(range(100))
        assert values(broker) == [b"%d" % i for i in range(100)]

    run(scenario)


def test_what_arrives_while_a_batch_is_under_way_gathers_into_the_next() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        async with Producer(cluster) as producer:
            for i in range(1000):
                await producer.send("t", b"%d" % i)
        assert values(broker) == [b"%d" % i for i in range(1000)]
        assert broker.count(ApiKey.PRODUCE) < 10

    run(scenario)


@pytest.mark.parametrize("codec", list(Compression))
def test_keys_nulls_headers_and_every_codec_survive(codec: Compression) -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        async with Producer(cluster, compression=codec) as producer:
            await producer.send("t", None, key=b"k", headers=[("h", b"1"), ("h", None)], timestamp_ms=5)
            await producer.send("t", b"v" * 1_000_000, timestamp_ms=6)
        consumer = Consumer(cluster)
        consumer.assign({TP: 0})
        got = [r.record async for r in consumer.records({TP: 2})]
        await consumer.close()
        assert got == [
            Record(key=b"k", value=None, headers=(("h", b"1"), ("h", None)), timestamp_ms=5, offset=0),
            Record(key=None, value=b"v" * 1_000_000, timestamp_ms=6, offset=1),
        ]

    run(scenario)


async def test_a_moved_leader_is_found_and_nothing_is_written_twice_or_out_of_order() -> None:
    async with Broker(1) as one, Broker(2) as two:
        one.peers = two.peers = [one, two]
        one.leaders = two.leaders
        one.logs = two.logs
        one.add_topic("t", leader_id=1)
        async with (
            asyncio.timeout(20),
            Cluster(one.address, QUICK) as cluster,
            Producer(cluster) as producer,
        ):
            await (await producer.send("t", b"a"))
            one.leaders[TP] = 2
            for value in (b"b", b"c", b"d"):
                await producer.send("t", value)
        assert values(two) == [b"a", b"b", b"c", b"d"]
        assert two.count(ApiKey.PRODUCE) >= 1


def test_an_idempotent_retry_repeats_producer_id_and_sequence() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        broker.answers[ApiKey.PRODUCE] = [broker.on_produce, DROP]
        async with Producer(cluster, idempotent=True) as producer:
            await (await producer.send("t", b"a"))
            await (await producer.send("t", b"b"))
            await (await producer.send("t", b"c"))
        sent = [
            (header.producer_id, header.base_sequence)
            for key, request in broker.requests
            if key == ApiKey.PRODUCE
            for _, header in headers(request.topic_data[0].partition_data[0].records)
        ]
        assert sent == [(1001, 0), (1001, 1), (1001, 1), (1001, 2)]

    run(scenario)


def test_an_idempotent_lane_takes_a_new_producer_id_after_it_gave_a_batch_up() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        def refuse(_: Any) -> dict[str, Any]:
            partition = {"index": 0, "error_code": ErrorCode.out_of_order_sequence_number}
            return {"responses": [{"name": "t", "partition_responses": [partition]}]}

        broker.add_topic("t")
        broker.answers[ApiKey.PRODUCE] = [refuse]
        async with Producer(cluster, idempotent=True) as producer:
            with pytest.raises(RequestError, match="out of order"):
                await (await producer.send("t", b"a"))
            await (await producer.send("t", b"b"))
        (_, header), *_ = headers(broker.logs[TP])
        assert (header.producer_id, header.base_sequence) == (1002, 0)

    run(scenario)


def test_a_lost_answer_is_reported_as_unknown_even_when_the_last_attempt_failed_to_connect() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        broker.answers[ApiKey.PRODUCE] = [DROP]
        producer = Producer(cluster)
        delivery = await producer.send("t", b"a")
        await broker.until(lambda: broker.count(ApiKey.PRODUCE) == 1)
        await broker.stop()
        with pytest.raises(Unanswered):
            await delivery
        await broker.start()

    run(scenario, deadline_ms=2_000)


def test_a_failure_that_nobody_awaits_comes_out_of_flush() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        def too_large(_: Any) -> dict[str, Any]:
            partition = {"index": 0, "error_code": ErrorCode.message_too_large}
            return {"responses": [{"name": "t", "partition_responses": [partition]}]}

        broker.add_topic("t")
        broker.answers[ApiKey.PRODUCE] = [too_large]
        producer = Producer(cluster)
        await producer.send("t", b"a")
        with pytest.raises(RequestError) as caught:
            await producer.flush()
        assert caught.value.code == ErrorCode.message_too_large
        await producer.flush()

    run(scenario)


def test_acks_0_does_not_wait() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        async with Producer(cluster, acks=0) as producer:
            assert await (await producer.send("t", b"a")) == -1
        await broker.until(lambda: values(broker) == [b"a"])

    run(scenario)


def test_a_full_buffer_slows_the_sender_down() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        gate = asyncio.Event()

        async def slow(request: Any) -> Any:
            await gate.wait()
            return broker.on_produce(request)

        broker.add_topic("t")
        broker.answers[ApiKey.PRODUCE] = [slow]
        async with Producer(cluster, buffer_bytes_max=100) as producer:
            await producer.send("t", b"x" * 200)
            second = asyncio.create_task(producer.send("t", b"y"))
            await broker.until(lambda: broker.count(ApiKey.PRODUCE) == 1)
            assert not second.done()
            gate.set()
            await second
        assert values(broker) == [b"x" * 200, b"y"]

    run(scenario)


def test_keyless_records_take_turns_and_keyed_ones_stay_together() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t", partitions=3)
        async with Producer(cluster) as producer:
            seen = [await (await producer.send("t", b"x")) for _ in range(6)]
            keyed = {(await producer.send("t", b"x", key=b"same")).tp for _ in range(6)}
        assert seen == [0, 0, 0, 1, 1, 1]
        assert len(keyed) == 1

    run(scenario)


def test_a_partition_that_does_not_exist_is_refused_at_once() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t", partitions=2)
        async with Producer(cluster) as producer:
            with pytest.raises(RequestError, match="only 0-1"):
                await producer.send("t", b"x", partition=2)

    run(scenario)


def test_a_producer_creates_topics_only_when_it_may() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        async with Producer(cluster) as producer:
            assert await (await producer.send("fresh", b"x")) == 0
        # No time for a second attempt: what the first one heard is what the caller is told.
        once = ClientOptions(deadline_ms=20_000, retry_backoff_ms=30_000)
        async with Cluster(broker.address, once) as other, Producer(other, create_topics=False) as producer:
            with pytest.raises(RequestError) as caught:
                await producer.send("absent", b"x")
        assert caught.value.code == ErrorCode.unknown_topic_or_partition

    run(scenario)


async def test_an_old_node_gets_the_oldest_question() -> None:
    async with Broker(api_versions_max=0) as broker, Cluster(broker.address, QUICK) as cluster:
        broker.add_topic("t")
        assert list(await cluster.topics()) == ["t"]


async def test_nobody_there_is_said_at_once_and_by_name() -> None:
    async with Broker() as broker:
        address = broker.address
    async with Cluster(address, QUICK) as cluster:
        with pytest.raises(Unreachable, match=f"no node answers at {address}"):
            await cluster.probe()


async def test_the_second_bootstrap_address_is_used_when_the_first_is_dead() -> None:
    async with Broker() as dead:
        address = dead.address
    async with Broker() as broker, Cluster(f"{address},{broker.address}", QUICK) as cluster:
        assert (await cluster.probe()).cluster_id == "fake"


async def test_a_port_that_is_not_kafka_is_recognized() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Cluster(f"127.0.0.1:{port}", QUICK) as cluster:
        with pytest.raises((Unavailable, PeerError)):
            await cluster.probe()


def test_a_silent_node_condemns_its_connection_and_the_next_one_works() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        await cluster.probe()
        broker.answers[ApiKey.METADATA] = [HANG]
        assert list(await cluster.topics()) == ["t"]
        assert broker.connections == 2

    run(scenario, request_timeout_ms=50)


def test_an_abandoned_request_leaves_the_connection_usable() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        gate = asyncio.Event()

        async def late(request: Any) -> Any:
            await gate.wait()
            return broker.on_metadata(request)

        await cluster.probe()
        broker.answers[ApiKey.METADATA] = [late]
        first = asyncio.create_task(cluster.topics())
        await broker.until(lambda: broker.count(ApiKey.METADATA) == 2)
        first.cancel()
        gate.set()
        assert list(await cluster.topics()) == ["t"]
        assert broker.connections == 1

    run(scenario)


def test_a_consumer_waits_for_records_and_moves_on() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        async with Consumer(cluster, FetchOptions(max_wait_ms=2_000)) as consumer:
            consumer.assign({TP: 0})
            polled = asyncio.create_task(consumer.poll())
            await broker.until(lambda: broker.count(ApiKey.FETCH) == 1)
            broker.append(TP, build_batch([Record(key=None, value=b"a")]))
            (fetched,) = await polled
            assert [record.value for record in fetched.records()] == [b"a"]
            assert (fetched.next_offset, consumer.position(TP)) == (1, 1)
            assert await consumer.poll(timeout_ms=10) == []

    run(scenario)


def test_a_consumer_starts_in_the_middle_of_a_batch() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        broker.append(TP, build_batch([Record(key=None, value=b"%d" % i) for i in range(5)]))
        async with Consumer(cluster) as consumer:
            consumer.assign({TP: 3})
            assert [r.record.value async for r in consumer.records({TP: 5})] == [b"3", b"4"]

    run(scenario)


async def test_a_consumer_follows_a_moved_leader() -> None:
    async with Broker(1) as one, Broker(2) as two:
        one.peers = two.peers = [one, two]
        one.leaders, one.logs = two.leaders, two.logs
        one.add_topic("t", leader_id=1)
        one.append(TP, build_batch([Record(key=None, value=b"a")]))
        options = FetchOptions(max_wait_ms=50)
        async with Cluster(one.address, QUICK) as cluster, Consumer(cluster, options) as consumer:
            consumer.assign({TP: 0})
            assert [r.record.value async for r in consumer.records({TP: 1})] == [b"a"]
            one.leaders[TP] = 2
            two.append(TP, build_batch([Record(key=None, value=b"b")]))
            assert [r.record.value async for r in consumer.records({TP: 2})] == [b"b"]


def test_an_offset_out_of_range_is_an_error_or_a_fresh_start() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        broker.add_topic("t")
        broker.log_start_offsets[TP] = 7
        broker.append(TP, build_batch([Record(key=None, value=b"a")]))
        async with Consumer(cluster) as consumer:
            consumer.assign({TP: 0})
            with pytest.raises(RequestError) as caught:
                await consumer.poll()
            assert caught.value.code == ErrorCode.offset_out_of_range
        async with Consumer(cluster, on_out_of_range="earliest") as consumer:
            consumer.assign({TP: 0})
            (fetched,) = await consumer.poll()
            assert fetched.fetch_offset == 7

    run(scenario)


def test_aborted_transactions_are_left_out_and_committed_ones_are_not() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        def transactional(producer_id: int, value: bytes) -> bytearray:
            return build_batch(
                [Record(key=None, value=value)],
                producer_id=producer_id,
                producer_epoch=0,
                is_transactional=True,
            )

        def marker(producer_id: int, commit: bool) -> bytearray:
            return build_marker(
                commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
            )

        broker.add_topic("t")
        for batch in (
            transactional(1, b"aborted"),
            transactional(2, b"committed"),
            build_batch([Record(key=None, value=b"plain")]),
            marker(1, False),
            transactional(1, b"second try"),
            marker(2, True),
            marker(1, True),
        ):
            broker.append(TP, batch)
        broker.aborted = [{"producer_id": 1, "first_offset": 0}]
        whole = bytes(broker.logs[TP])

        def everything(_: Any) -> dict[str, Any]:
            partition = {
                "partition_index": 0,
                "high_watermark": 7,
                "last_stable_offset": 7,
                "aborted_transactions": broker.aborted,
                "records": whole,
            }
            return {"responses": [{"topic": "t", "partitions": [partition]}]}

        broker.answers[ApiKey.FETCH] = [everything]
        async with Consumer(cluster, FetchOptions(read_committed=True)) as consumer:
            consumer.assign({TP: 0})
            got = [r.record.value async for r in consumer.records({TP: 7})]
        assert got == [b"committed", b"plain", b"second try"]
        assert next(r for k, r in broker.requests if k == ApiKey.FETCH).isolation_level == 1

    run(scenario)


def test_topics_and_offsets_through_the_admin() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        admin = Admin(cluster)
        created, again = await admin.create_topics([NewTopic(name="t", partitions=2)]) + (
            await admin.create_topics([NewTopic(name="t", partitions=2)])
        )
        assert isinstance(created, CreatedTopic)
        assert created.partitions == 2
        assert isinstance(again, RequestError)
        assert again.code == ErrorCode.topic_already_exists
        broker.append(TP, build_batch([Record(key=None, value=b"a")] * 3))
        latest = await admin.offsets({TP: LATEST, TopicPartition("t", 1): EARLIEST})
        assert {tp.partition: at.offset for tp, at in latest.items()} == {0: 3, 1: 0}
        assert [topic.name for topic in await admin.list_topics()] == ["t"]
        deleted, absent = await admin.delete_topics(["t", "u"])
        assert deleted is None
        assert absent is not None
        assert absent.code == ErrorCode.unknown_topic_or_partition
        with pytest.raises(RequestError, match="'t' does not exist"):
            await admin.describe_topics(["t"])

    run(scenario)
