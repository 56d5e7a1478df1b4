"""Writes records with a Kafka client that knows nothing of chronik, and says how that went."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient


def produce(bootstrap: str, topic: str, values: Iterable[Any], *, partition: int = -1) -> int:
    """Returns how many were acknowledged; fails if one was not."""
    failures: list[str] = []
    acknowledged = 0

    def done(error: Any, _message: Any) -> None:
        nonlocal acknowledged
        if error is not None:
            failures.append(str(error))
        else:
            acknowledged += 1

    config = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "retries": 0}
    producer = Producer({**config, "queue.buffering.max.messages": 1_000_000})
    for value in values:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, data, key=b"k", partition=partition, on_delivery=done)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == []
    return acknowledged


def orders(count: int, start: int = 0) -> Iterable[dict[str, Any]]:
    names = ("ada", "grace", "linus", "barbara")
    notes = ("express delivery please", "gift wrapped", "call before delivery", "")
    for n in range(start, start + count):
        yield {"id": n, "customer": names[n % 4], "total": (n % 1000) / 4, "note": notes[n % 3]}


def spread(bootstrap: str, topic: str, count: int, start: int) -> None:
    """Orders by turns to partitions 0 and 1, so that everybody knows which offset each has."""
    values = list(orders(count, start))
    for number in range(2):
        produce(bootstrap, topic, values[number::2], partition=number)


def delete_before(bootstrap: str, topic: str, offset: int, partitions: int) -> None:
    """As retention does: the log no longer has these records."""
    wanted = [TopicPartition(topic, number, offset) for number in range(partitions)]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its futures end with it
    for answer in admin.delete_records(wanted).values():
        answer.result(60)
