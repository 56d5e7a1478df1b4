"""A well-behaved client: it produces, consumes and commits, and remembers what was acknowledged."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fuzz import canaries

TOPIC: Final = "beside"
GROUP: Final = "beside"
PARTITIONS: Final = 2
INTERVAL_S: Final = 0.01
VALUE: Final = b"x" * 200
CATCH_UP_S: Final = 20.0
QUIET: Final = (KafkaError._PARTITION_EOF,)


class Beside:
    """What one client saw over all rounds. `start` and `stop` enclose a time in which nothing may fail."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """By partition and offset."""
        self.committed: dict[int, int] = {}
        """By partition, the group's offset."""
        self.problems: list[str] = []
        self.latencies_s: list[float] = []
        self._sent = 0
        self._read: set[tuple[int, int]] = set()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        new = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
        admin.create_topics([new])[TOPIC].result(30)

    def keep_a_secret(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        producer.produce(canaries.SECRET_TOPIC, json.dumps({"a": canaries.WORD}))
        assert producer.flush(30) == 0

    def start(self) -> None:
        self._is_over.clear()
        self.latencies_s = []
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def p99_s(self) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[int(len(ordered) * 0.99)] if ordered else 0.0

    def _produce(self) -> None:
        config = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 0}
        producer = Producer({**config, "message.timeout.ms": 30_000, "error_cb": self._failed})
        while not self._is_over.wait(INTERVAL_S):
            self._sent += 1
            value = b"%d " % self._sent + VALUE
            producer.produce(
                TOPIC,
                value,
                partition=self._sent % PARTITIONS,
                on_delivery=self._delivered(value, time.monotonic()),
            )
            producer.poll(0)
        if left := producer.flush(30):
            self.problems.append(f"{left} records were not delivered")

    def _delivered(self, value: bytes, began: float) -> Any:
        def done(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.problems.append(f"not delivered: {error}")
                return
            self.latencies_s.append(time.monotonic() - began)
            self.acknowledged[message.partition(), message.offset()] = value

        return done

    def _failed(self, error: KafkaError) -> None:
        self.problems.append(f"client error: {error}")

    def _consume(self) -> None:
        config: dict[str, Any] = {"bootstrap.servers": self._bootstrap, "group.id": GROUP}
        config = {**config, "auto.offset.reset": "earliest"}
        consumer = Consumer({**config, "error_cb": self._failed, "enable.auto.commit": False})
        consumer.subscribe([TOPIC])
        deadline: float | None = None
        uncommitted = 0
        while not self._is_over.is_set() or not self._read >= self.acknowledged.keys():
            if self._is_over.is_set():
                deadline = deadline or time.monotonic() + CATCH_UP_S
                if time.monotonic() > deadline:
                    self.problems.append(f"read {len(self._read)} of {len(self.acknowledged)} records")
                    break
            message = consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() not in QUIET:
                    self.problems.append(f"not read: {error}")
                continue
            self._read.add((message.partition(), message.offset()))
            uncommitted += 1
            if uncommitted == 200:
                self._commit(consumer)
                uncommitted = 0
        if uncommitted:
            self._commit(consumer)
        consumer.close()

    def _commit(self, consumer: Consumer) -> None:
        for one in consumer.commit(asynchronous=False):
            if one.offset >= 0:  # else it has read nothing there yet
                self.committed[one.partition] = one.offset

    def _check_committed(self) -> list[str]:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": GROUP})
        wanted = [TopicPartition(TOPIC, number) for number in self.committed]
        found = (
            {one.partition: one.offset for one in consumer.committed(wanted, timeout=30)} if wanted else {}
        )
        consumer.close()
        return [] if found == self.committed else [f"committed were {self.committed}, found {found}"]

    def check_everything(self) -> list[str]:
        """What differs from what was acknowledged: committed offsets, and the whole topic."""
        return self._check_committed() + self._check_records()

    def _check_records(self) -> list[str]:
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "beside-check", "enable.auto.commit": False}
        )
        ends = {}
        for number in range(PARTITIONS):
            low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=30)
            ends[number] = high
            if low != 0:
                return [f"partition {number} begins at {low}"]
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        found: dict[tuple[int, int], bytes] = {}
        deadline = time.monotonic() + CATCH_UP_S
        while len(found) < sum(ends.values()) and time.monotonic() < deadline:
            for message in consumer.consume(1_000, timeout=0.2):
                if message.error() is None:
                    found[message.partition(), message.offset()] = message.value()
        consumer.close()
        lost = [place for place, value in self.acknowledged.items() if found.get(place) != value]
        twice = len(found) - len(set(found.values()))
        problems = (
            [f"{len(lost)} acknowledged records are lost or changed, first {min(lost)}"] if lost else []
        )
        return problems + ([f"{twice} records are there twice"] if twice else [])
