"""Exactly once, with Apache Kafka's own transactional client, while broker and application are killed.

Guards L04.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import confluent_kafka as ck
import confluent_kafka.admin
import pytest

from tests import java
from tests.node import ChronikNode

DEADLINE_S = 240
MORE_RECORDS = 5_000


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--crash-rounds"))


def create(node: ChronikNode, topic: str, partitions: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, partitions, 1)])[topic].result(60)


def fill(node: ChronikNode, topic: str, count: int, first: int = 0) -> None:
    producer = ck.Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce(topic, str(number).encode())
    assert producer.flush(60) == 0


def read(node: ChronikNode, topic: str, partitions: int) -> list[list[bytes]]:
    """Everything that a read_committed consumer sees, by partition, up to the end."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ck.TopicPartition(topic, index, ck.OFFSET_BEGINNING) for index in range(partitions)])
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    at_end: set[int] = set()
    until = time.monotonic() + 60
    while len(at_end) < partitions:
        assert time.monotonic() < until, f"the end of {topic} is not reached: a transaction hangs"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            at_end.add(message.partition())
        else:
            found[message.partition()].append(message.value())
    consumer.close()
    return found


class Copier:
    """Apache Kafka's consume-transform-produce loop; it goes on where its group's committed offsets are."""

    def __init__(self, node: ChronikNode, log: Path, records: int) -> None:
        self.command = java.command(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", node.bootstrap),
            *("--input-topic", "in", "--input-partition", "0", "--output-topic", "out"),
            *("--max-messages", str(records), "--transaction-size", "10", "--transaction-timeout", "10000"),
            *("--transactional-id", "copier", "--consumer-group", "copier"),
            *("--enable-random-aborts", "--group-mode", "--use-group-metadata"),
        )
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def committed(node: ChronikNode) -> int:
    """How far the copier's group got; -1 while that cannot be told."""
    consumer = ck.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "copier"})
    try:
        return int(consumer.committed([ck.TopicPartition("in", 0)], timeout=5)[0].offset)
    except ck.KafkaException:
        return -1
    finally:
        consumer.close()


def wait_for_progress(node: ChronikNode, copier: Copier, beyond: int) -> int:
    until = time.monotonic() + 60
    while True:
        found = committed(node)
        if found > beyond or (copier.ended and found >= 0):
            return found
        assert time.monotonic() < until, f"no progress beyond {beyond}: {copier.log.read_text()[-2000:]}"


def test_a_transactional_copy_is_exact_whoever_is_killed(tmp_path: Path, rounds: int) -> None:
    pick = random.Random(11)
    records = 1_000 + 1_000 * rounds
    with ChronikNode(tmp_path / "node", group_initial_rebalance_delay_ms=0) as node:
        create(node, "in", 1)
        create(node, "out", 3)
        fill(node, "in", records)
        copier = Copier(node, tmp_path / "copier.log", records)
        copier.start()
        position, kills = 0, Counter[str]()
        try:
            while kills.total() < rounds:
                position = wait_for_progress(node, copier, min(position + pick.randrange(200), records - 1))
                if position >= records:  # the copy is ahead of the kills: there is more to do
                    copier.kill()
                    fill(node, "in", MORE_RECORDS, first=records)
                    records += MORE_RECORDS
                    copier = Copier(node, copier.log, records)
                    copier.start()
                elif kills["application"] > kills["broker"]:
                    node.kill()
                    node.start()
                    kills["broker"] += 1
                else:
                    kills["application"] += not copier.ended  # which also may have given up by itself
                    copier.kill()
                    copier.start()
            finish(node, copier, records)
        finally:
            copier.kill()
        print(f"\n{records} records, kill -9 up to number {position}: {dict(kills)}")
        out = read(node, "out", 3)
        counts = Counter(value for partition in out for value in partition)
        assert len(counts) == records, f"{records - len(counts)} records are missing"
        assert set(counts.values()) == {1}, "records were doubled"
        for partition in out:
            numbers = [int(value) for value in partition]
            assert numbers == sorted(numbers), "the order within a partition changed"
        node.stop()


def finish(node: ChronikNode, copier: Copier, records: int) -> None:
    """Let the copy end; one that gave up (its transaction was fenced or timed out) is started again."""
    until = time.monotonic() + DEADLINE_S
    while committed(node) < records:
        assert time.monotonic() < until, copier.log.read_text()[-2000:]
        if copier.ended:
            copier.start()
        assert copier.process is not None
        try:
            copier.process.wait(2)
        except subprocess.TimeoutExpired:
            pass


def test_idempotent_producers_neither_lose_nor_double_across_restarts(tmp_path: Path, rounds: int) -> None:
    """librdkafka and Java retry what a killed broker did not answer: each record is there once, in order."""
    count = 4_000 * rounds
    with ChronikNode(tmp_path / "node") as node:
        create(node, "rd", 1)
        create(node, "java", 1)
        # The tool does not retry unless it is told to.
        config = tmp_path / "producer.properties"
        config.write_text("enable.idempotence=true\nretries=2147483647\nlinger.ms=1\n")
        other = subprocess.Popen(
            java.command(
                "org.apache.kafka.tools.VerifiableProducer",
                *("--bootstrap-server", node.bootstrap, "--topic", "java"),
                *("--max-messages", str(count), "--throughput", "2000"),
                *("--producer.config", str(config)),
            ),
            stdout=(tmp_path / "java.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        producer = ck.Producer(
            {"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )
        failed: list[object] = []
        try:
            for number in range(count):
                producer.produce(
                    "rd", str(number).encode(), on_delivery=lambda error, _: error and failed.append(error)
                )
                while len(producer) > 500:
                    producer.poll(0.01)
                if number % 4_000 == 2_000:
                    node.kill()
                    node.start()
            assert producer.flush(60) == 0
            assert other.wait(120) == 0
        finally:
            other.kill()
            other.wait()
        assert not failed
        expected = [str(number).encode() for number in range(count)]
        assert read(node, "rd", 1)[0] == expected
        assert read(node, "java", 1)[0] == expected
        node.stop()
