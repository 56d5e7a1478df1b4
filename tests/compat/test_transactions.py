"""Transactions and idempotence with unchanged clients: visibility, fencing, time-outs, offsets, tools.

Guards L04.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import confluent_kafka as ck
import confluent_kafka.admin
import pytest
from aiokafka import AIOKafkaProducer

from tests import java
from tests.process import ServerProcess

DEADLINE_S = 60


def create(broker: ServerProcess, topic: str, partitions: int = 1) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, partitions, 1)])[topic].result(60)


def producer(broker: ServerProcess, name: str, **config: object) -> ck.Producer:
    made = ck.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, **config})
    made.init_transactions(DEADLINE_S)
    return made


def write(made: ck.Producer, topic: str, values: Iterable[bytes]) -> None:
    """Into the broker's log, not only into the client's queue."""
    for value in values:
        made.produce(topic, value)
    assert made.flush(DEADLINE_S) == 0


def read(broker: ServerProcess, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Everything up to the end that this isolation level has."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
    values = []
    end = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < end, "the end was not reached"
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            consumer.close()
            return values
        if message is not None:
            values.append(message.value())


def test_only_committed_records_are_read_by_those_who_ask_for_it(broker: ServerProcess, topic: str) -> None:
    create(broker, topic)
    made = producer(broker, f"{topic}-tx")
    made.begin_transaction()
    write(made, topic, [b"aborted"])
    made.abort_transaction(DEADLINE_S)
    made.begin_transaction()
    write(made, topic, [b"one", b"two"])
    assert read(broker, topic) == []
    assert read(broker, topic, "read_uncommitted") == [b"aborted", b"one", b"two"]
    made.commit_transaction(DEADLINE_S)
    assert read(broker, topic) == [b"one", b"two"]


def test_an_open_transaction_holds_back_what_comes_behind_it(broker: ServerProcess, topic: str) -> None:
    create(broker, topic)
    made = producer(broker, f"{topic}-tx")
    made.begin_transaction()
    write(made, topic, [b"slow"])
    plain = ck.Producer({"bootstrap.servers": broker.bootstrap})
    write(plain, topic, [b"plain"])
    assert read(broker, topic) == []
    made.abort_transaction(DEADLINE_S)
    assert read(broker, topic) == [b"plain"]


def test_a_new_producer_fences_the_old_one_and_aborts_what_it_left(broker: ServerProcess, topic: str) -> None:
    create(broker, topic)
    old = producer(broker, f"{topic}-tx")
    old.begin_transaction()
    write(old, topic, [b"left open"])
    new = producer(broker, f"{topic}-tx")
    new.begin_transaction()
    write(new, topic, [b"new"])
    new.commit_transaction(DEADLINE_S)
    with pytest.raises(ck.KafkaException) as caught:
        old.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].fatal()
    assert read(broker, topic) == [b"new"]


def test_a_transaction_that_takes_too_long_is_aborted(broker: ServerProcess, topic: str) -> None:
    create(broker, topic)
    made = producer(broker, f"{topic}-tx", **{"transaction.timeout.ms": 1_000})
    made.begin_transaction()
    write(made, topic, [b"late"])
    plain = ck.Producer({"bootstrap.servers": broker.bootstrap})
    write(plain, topic, [b"plain"])
    end = time.monotonic() + DEADLINE_S
    while read(broker, topic) != [b"plain"]:
        assert time.monotonic() < end, "the transaction was not aborted"
    with pytest.raises(ck.KafkaException):
        made.commit_transaction(DEADLINE_S)
    assert read(broker, topic) == [b"plain"]


def test_offsets_count_with_the_transaction(broker: ServerProcess, topic: str) -> None:
    create(broker, topic)
    plain = ck.Producer({"bootstrap.servers": broker.bootstrap})
    write(plain, topic, [b"x"] * 10)
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"{topic}-group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    end = time.monotonic() + DEADLINE_S
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < end, "nothing was assigned"
    made = producer(broker, f"{topic}-tx")

    def commit(offset: int, keep: bool) -> int:
        made.begin_transaction()
        made.send_offsets_to_transaction(
            [ck.TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), DEADLINE_S
        )
        if keep:
            made.commit_transaction(DEADLINE_S)
        else:
            made.abort_transaction(DEADLINE_S)
        return int(consumer.committed([ck.TopicPartition(topic, 0)], timeout=60)[0].offset)

    assert commit(5, keep=True) == 5
    assert commit(8, keep=False) == 5
    assert commit(9, keep=True) == 9
    consumer.close()


async def test_aiokafka_transactions(broker: ServerProcess, topic: str) -> None:
    create(broker, topic)

    made = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-tx")
    await made.start()
    for number in range(3):
        await made.begin_transaction()
        await made.send_and_wait(topic, str(number).encode())
        if number == 1:
            await made.abort_transaction()
        else:
            await made.commit_transaction()
    await made.stop()

    assert read(broker, topic) == [b"0", b"2"]


def test_the_java_client_copies_in_transactions(broker: ServerProcess, topic: str) -> None:
    """Java 4 leaves it to the broker to add partitions, and gets a new epoch with every end (KIP-890)."""
    create(broker, topic)
    create(broker, f"{topic}-out")
    plain = ck.Producer({"bootstrap.servers": broker.bootstrap})
    values = [str(number).encode() for number in range(500)]
    write(plain, topic, values)
    java.run(
        "org.apache.kafka.tools.TransactionalMessageCopier",
        *("--broker-list", broker.bootstrap, "--input-topic", topic, "--output-topic", f"{topic}-out"),
        *("--input-partition", "0", "--max-messages", "500", "--transaction-size", "20"),
        *("--transactional-id", f"{topic}-tx", "--consumer-group", f"{topic}-group"),
        *("--transaction-timeout", "30000", "--enable-random-aborts", "--group-mode", "--use-group-metadata"),
    )
    assert read(broker, f"{topic}-out") == values


def test_the_java_tools_find_transactions_and_producers(broker: ServerProcess, topic: str) -> None:
    create(broker, topic)
    made = producer(broker, f"{topic}-tx")
    made.begin_transaction()
    write(made, topic, [b"open"])
    main = "org.apache.kafka.tools.TransactionsCommand"
    server = ("--bootstrap-server", broker.bootstrap)
    listed = [line.split() for line in java.run(main, *server, "list").lines()]
    assert [line[3] for line in listed if line and line[0] == f"{topic}-tx"] == ["Ongoing"]
    described = java.run(main, *server, "describe", "--transactional-id", f"{topic}-tx").out
    assert f"{topic}-0" in described
    producers = java.run(main, *server, "describe-producers", "--topic", topic, "--partition", "0").lines()
    assert producers[1].split()[-1] == "0"  # where the open transaction starts
    # What an operator does about a transaction whose coordinator has forgotten it.
    java.run(main, *server, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert read(broker, topic) == []
    assert (
        java.run(main, *server, "describe-producers", "--topic", topic, "--partition", "0")
        .lines()[1]
        .split()[-1]
        == "None"
    )


def test_apache_kafka_reads_the_state_of_groups_and_transactions(broker: ServerProcess, topic: str) -> None:
    create(broker, topic)
    made = producer(broker, f"{topic}-tx")
    made.begin_transaction()
    write(made, topic, [b"x"])
    made.commit_transaction(DEADLINE_S)
    formatter = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
    # It ends when nothing came for a while, which on a busy machine may be before anything came.
    end, shown = time.monotonic() + DEADLINE_S, ""
    while f'"transactionalId":"{topic}-tx"' not in shown:
        assert time.monotonic() < end, shown[-2000:]
        shown = java.run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", broker.bootstrap, "--topic", "__transaction_state", "--from-beginning"),
            *("--formatter", formatter, "--timeout-ms", "5000"),
        ).out
