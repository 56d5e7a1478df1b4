"""Kafka clients as the cluster tests use them: kafka-python for people's code, confluent-kafka for speed."""

from __future__ import annotations

import time
from collections.abc import Callable

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from chronik.testing import Cluster

DEADLINE_S = 60


def producer(bootstrap: str, **config: object) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0, **config}
    )


def kafka_python_producer(bootstrap: str, **config: object) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=bootstrap.split(","), **{"acks": "all", "linger_ms": 0, "retries": 5, **config}
    )


def send(client: confluent_kafka.Producer, topic: str, value: bytes, partition: int = 0) -> float:
    """One record, waited for; returns the seconds that took."""
    outcomes: list[object] = []

    def delivered(error: object, _: object) -> None:
        outcomes.append(error)

    began = time.monotonic()
    client.produce(topic, value, partition=partition, on_delivery=delivered)
    client.flush(DEADLINE_S)
    assert outcomes, "neither acknowledged nor refused"
    if outcomes[0] is not None:
        raise confluent_kafka.KafkaException(outcomes[0])
    return time.monotonic() - began


def admin(bootstrap: str) -> AdminClient:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    client.list_topics(timeout=DEADLINE_S)
    return client


def create(client: AdminClient, *names: str, partitions: int = 1, replicas: int = -1) -> float:
    """Create topics in one request; returns the seconds until all are confirmed."""
    began = time.monotonic()
    for future in client.create_topics([NewTopic(name, partitions, replicas) for name in names]).values():
        future.result(DEADLINE_S)
    return time.monotonic() - began


def topics_on(cluster: Cluster, node_id: int) -> set[str]:
    """Topics as this very node names them, every partition with a leader."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_of(node_id), "log_level": 0})
    listed = client.list_topics(timeout=DEADLINE_S)
    return {
        name
        for name, topic in listed.topics.items()
        if topic.error is None and all(p.leader >= 0 for p in topic.partitions.values())
    }


def count_records(bootstrap: str, topic: str, expected: int, **config: object) -> int:
    """Consume from the beginning until `expected` records came or nothing comes any more."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"count-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **config,
        }
    )
    parts = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in parts]
    )
    found = 0
    try:
        while found < expected:
            messages = consumer.consume(min(1000, expected - found), timeout=DEADLINE_S)
            if not messages:
                break
            for message in messages:
                assert message.error() is None, message.error()
            found += len(messages)
    finally:
        consumer.close()
    return found


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def until(fact: Callable[[], bool], timeout_s: float = DEADLINE_S) -> float:
    """Ask until it is true; returns the seconds that took."""
    began = time.monotonic()
    while not fact():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s"
        time.sleep(0.002)
    return time.monotonic() - began
