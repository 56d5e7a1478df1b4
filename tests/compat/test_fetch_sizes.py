"""librdkafka with a small receive limit: it drops a connection whose answer exceeds what it asked for."""

from __future__ import annotations

import random
import time

import confluent_kafka

from tests.compat.clients import DEADLINE_S, Confluent
from tests.process import ServerProcess

PARTITIONS = 10
FETCH_BYTES = 1_000_000
BATCH_BYTES = 600_000
"""Two of them do not fit into one answer."""


def test_a_consumer_with_a_small_receive_limit_reads_everything(broker: ServerProcess, topic: str) -> None:
    Confluent(broker.bootstrap).create(topic, partitions=PARTITIONS)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    noise = random.Random(1).randbytes(BATCH_BYTES)
    for partition in range(PARTITIONS):
        for _ in range(2):
            producer.produce(topic, noise, partition=partition)
            producer.flush(DEADLINE_S)
    complaints: list[str] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "fetch.max.bytes": FETCH_BYTES,
            "message.max.bytes": FETCH_BYTES,
            "max.partition.fetch.bytes": FETCH_BYTES,
            "receive.message.max.bytes": FETCH_BYTES + 512,
            "error_cb": lambda error: complaints.append(str(error)),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, one, 0) for one in range(PARTITIONS)])
    got = 0
    deadline = time.monotonic() + DEADLINE_S
    while got < 2 * PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(1)
        got += message is not None and message.error() is None
    consumer.close()
    assert (got, complaints) == (2 * PARTITIONS, [])
