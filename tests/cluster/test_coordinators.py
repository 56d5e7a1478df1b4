"""Groups and transactions outlive the nodes that coordinate them."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as ck
import confluent_kafka.admin
import pytest

from chronik.testing import Cluster
from tests import java

DEADLINE_S = 60
RECORDS = 6_000


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, what()


def fill(cluster: Cluster, topic: str, count: int, first: int = 0) -> None:
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(first, first + count):
        producer.produce(topic, str(number).encode())
    assert producer.flush(DEADLINE_S) == 0


def committed(cluster: Cluster, group: str, topic: str) -> int:
    consumer = ck.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        return int(consumer.committed([ck.TopicPartition(topic, 0)], timeout=10)[0].offset)
    except ck.KafkaException:
        return -1
    finally:
        consumer.close()


def read(cluster: Cluster, topic: str) -> list[bytes]:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
    values = []
    end = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < end, "the end was not reached: a transaction hangs"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            values.append(message.value())
        elif message.error().code() == ck.KafkaError._PARTITION_EOF:
            consumer.close()
            return values


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_when_its_coordinator_dies(protocol: str) -> None:
    with Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", partitions=2)
        fill(cluster, "orders", 100)
        consumer = ck.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "g",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
            }
        )
        consumer.subscribe(["orders"])
        seen: Counter[bytes] = Counter()

        def has_all(count: int) -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                seen[message.value()] += 1
            return len(seen) == count

        until(lambda: has_all(100), lambda: f"{len(seen)} of 100")
        consumer.commit(asynchronous=False)
        (state,) = {broker_of(cluster, "g")}
        cluster.kill(state)
        fill(cluster, "orders", 100, first=100)
        until(lambda: has_all(200), lambda: f"{len(seen)} of 200 after node {state} died")
        assert set(seen.values()) == {1}, "what was committed was read again"
        consumer.close()


def broker_of(cluster: Cluster, group: str) -> int:
    """Which node coordinates the group."""
    admin = ck.admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    return int(admin.describe_consumer_groups([group])[group].result(20).coordinator.id)


def test_exactly_once_while_nodes_die(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds = int(request.config.getoption("--crash-rounds"))
    pick = random.Random(3)
    with Cluster(nodes=3) as cluster:
        cluster.create_topic("in", partitions=1)
        cluster.create_topic("out", partitions=1)
        fill(cluster, "in", RECORDS)
        log = (tmp_path / "copier.log").open("ab")
        command = java.command(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", cluster.bootstrap),
            *("--input-topic", "in", "--input-partition", "0", "--output-topic", "out"),
            *("--max-messages", str(RECORDS), "--transaction-size", "10", "--transaction-timeout", "20000"),
            *("--transactional-id", "copier", "--consumer-group", "copier"),
            *("--enable-random-aborts", "--group-mode", "--use-group-metadata"),
        )
        copier = subprocess.Popen(command, stdout=log, stderr=log)
        position = 0
        try:
            for _ in range(rounds):
                goal = min(position + 100, RECORDS)
                until(lambda goal=goal: committed(cluster, "copier", "in") >= goal, lambda: "no progress")
                position = committed(cluster, "copier", "in")
                victim = pick.choice(list(cluster.nodes))
                cluster.kill(victim)
                cluster.start(victim)
            end = time.monotonic() + 180
            while committed(cluster, "copier", "in") < RECORDS:
                assert time.monotonic() < end, f"not done: {Path(log.name).read_text()[-2000:]}"
                if copier.poll() is not None:
                    copier = subprocess.Popen(command, stdout=log, stderr=log)
        finally:
            copier.kill()
            copier.wait()
            log.close()
        values = read(cluster, "out")
        counts = Counter(values)
        assert len(counts) == RECORDS, f"{RECORDS - len(counts)} records are missing"
        assert set(counts.values()) == {1}, "records were doubled"
        assert values == sorted(values, key=int)
