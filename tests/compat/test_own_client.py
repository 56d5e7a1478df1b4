"""chronik's own client against a real broker: what the command line, workloads and the pipeline build on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chronik.client import Cluster, Consumer, FetchOptions, GroupConsumer, Groups, Producer, Transaction
from chronik.client.admin import Admin, NewTopic
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ErrorCode, RequestError, TopicPartition
from tests.process import ServerProcess

Scenario = Callable[[Cluster], Awaitable[None]]


@pytest.fixture
def run(broker: ServerProcess) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), Cluster(broker.bootstrap) as cluster:
                await scenario(cluster)

        asyncio.run(main())

    return run


async def read(cluster: Cluster, topic: str, *, committed: bool) -> list[bytes | None]:
    """Everything in partition 0 up to its present end."""
    tp = TopicPartition(topic, 0)
    start = (await list_offsets(cluster, {tp: EARLIEST}))[tp].offset
    end = (await list_offsets(cluster, {tp: LATEST}, read_committed=committed))[tp].offset
    async with Consumer(cluster, FetchOptions(read_committed=committed)) as consumer:
        consumer.assign({tp: start})
        return [r.record.value async for r in consumer.records({tp: end})]


def test_an_idempotent_producer_keeps_order_over_many_partitions(
    run: Callable[[Scenario], None], topic: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name=topic, partitions=3)])
        async with Producer(cluster, idempotent=True) as producer:
            for number in range(3_000):
                await producer.send(topic, b"%d" % number, partition=number % 3)
        tps = [TopicPartition(topic, partition) for partition in range(3)]
        got: dict[TopicPartition, list[bytes | None]] = {tp: [] for tp in tps}
        async with Consumer(cluster) as consumer:
            consumer.assign(dict.fromkeys(tps, 0))
            async for found in consumer.records(dict.fromkeys(tps, 1_000)):
                got[found.tp].append(found.record.value)
        assert got == {tp: [b"%d" % n for n in range(tp.partition, 3_000, 3)] for tp in tps}

    run(scenario)


def test_a_transaction_shows_all_or_nothing(run: Callable[[Scenario], None], topic: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        transaction = Transaction(cluster, topic)
        async with Producer(cluster, transaction=transaction) as producer:
            await transaction.begin()
            await producer.send(topic, b"thrown away")
            await producer.flush()
            assert await read(cluster, topic, committed=True) == []
            assert await read(cluster, topic, committed=False) == [b"thrown away"]
            await transaction.abort(producer)
            for number in range(3):
                await transaction.begin()
                await producer.send(topic, b"kept %d" % number)
                await transaction.commit(producer)
        assert await read(cluster, topic, committed=True) == [b"kept 0", b"kept 1", b"kept 2"]

    run(scenario)


def test_the_second_producer_of_a_transactional_id_fences_the_first(
    run: Callable[[Scenario], None], topic: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        old, new = Transaction(cluster, topic), Transaction(cluster, topic)
        async with Producer(cluster, transaction=old) as first, Producer(cluster, transaction=new) as second:
            await old.begin()
            await (await first.send(topic, b"old"))
            await new.begin()
            await (await second.send(topic, b"new"))
            with pytest.raises(RequestError) as caught:
                await old.commit(first)
            assert caught.value.code in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
            await new.commit(second)
        assert await read(cluster, topic, committed=True) == [b"new"]

    run(scenario)


def test_offsets_are_a_part_of_the_transaction(run: Callable[[Scenario], None], topic: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        group, tp = f"{topic}-group", TopicPartition(topic, 0)
        transaction = Transaction(cluster, topic)
        async with Producer(cluster, transaction=transaction) as producer:
            for offset, commit in ((5, False), (7, True)):
                await transaction.begin()
                await producer.send(topic, b"out")
                await transaction.add_offsets(group, {tp: offset})
                await (transaction.commit if commit else transaction.abort)(producer)
        committed = await Groups(cluster).offsets(group)
        assert {tp: found.offset for tp, found in committed.items()} == {tp: 7}

    run(scenario)


def test_a_member_gets_everything_once_while_another_comes_and_goes(
    run: Callable[[Scenario], None], topic: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        group = f"{topic}-group"
        await Admin(cluster).create_topics([NewTopic(name=topic, partitions=2)])
        got: list[bytes | None] = []

        async def work(member: GroupConsumer) -> None:
            for part in await member.poll(200):
                got.extend(record.value for record in part.records())
                member.done(part.tp, part.next_offset)

        async with (
            Producer(cluster) as producer,
            GroupConsumer(cluster, group, [topic], start="earliest") as one,
        ):
            while not one.assignment:
                await work(one)
            await producer.send(topic, b"a", partition=0)
            await producer.send(topic, b"b", partition=1)
            async with GroupConsumer(cluster, group, [topic], start="earliest") as two:
                while not (len(one.assignment) == len(two.assignment) == 1):
                    await asyncio.gather(work(one), work(two))
                await producer.send(topic, b"c", partition=0)
                await producer.send(topic, b"d", partition=1)
                while len(got) < 4:
                    await asyncio.gather(work(one), work(two))
            while len(one.assignment) < 2:
                await work(one)
            await producer.send(topic, b"e", partition=0)
            await producer.send(topic, b"f", partition=1)
            while len(got) < 6:
                await work(one)
        assert sorted(value for value in got if value is not None) == [b"a", b"b", b"c", b"d", b"e", b"f"]

    run(scenario)
