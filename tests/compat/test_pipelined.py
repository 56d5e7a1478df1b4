"""Transactional Java producers with several requests in flight: the broker may find all of them at once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests import java
from tests.compat.test_transactions import create
from tests.process import ServerProcess

PROGRAM = Path(__file__).parent / "foreign" / "java" / "PipelinedTransactions.java"
PARTITIONS = 4
TRANSACTIONS = 2
RECORDS = 10_000


@contextmanager
def stopped(broker: ServerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_requests_of_a_transaction_do_not_overtake_each_other(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, PARTITIONS)
    arguments = (broker.bootstrap, topic, str(PARTITIONS), str(TRANSACTIONS))
    process = subprocess.Popen(
        java.command(str(PROGRAM), *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said = []
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == "ready\n":
                    with stopped(broker):
                        process.stdin.write("\n")
                        process.stdin.flush()
                        assert process.stdout.readline() == "sent\n"
                else:
                    said.append(line.strip())
        finally:
            process.kill()
    assert said == ["errors 0", "retries 0", "failures {}", f"committed {TRANSACTIONS}"]


def test_a_load_of_transactions_over_several_partitions(broker: ServerProcess, topic: str) -> None:
    """Apache Kafka's own load generator. Many short transactions of small batches: in each, partitions join
    while requests to others are in flight."""
    create(broker, topic, PARTITIONS)
    produced = java.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1"),
        *("--transactional-id", f"{topic}-tx", "--transaction-duration-ms", "5"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}", "batch.size=200", "linger.ms=0"),
    )
    assert produced.lines()[-1].startswith(f"{RECORDS} records sent")
    assert "Exception" not in produced.err
    assert committed_records(broker, topic) == RECORDS


def committed_records(broker: ServerProcess, topic: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    count = ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(1_000, timeout=0.2):
            if message.error() is None:
                count += 1
            else:
                assert message.error().name() == "_PARTITION_EOF"
                ended += 1
    consumer.close()
    return count
