"""librdkafka producers and consumers that write down what they saw, as a history for `chronik check`."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from typing import Any
from zlib import crc32

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from chronik.check import Event, Poll, Send

QUIET = {"log_level": 0}
FLUSH_SECONDS = 120.0
POLL_SECONDS = 0.5
FINAL_SECONDS_MAX = 120.0
LEADER_MOVED = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


class Load:
    """Threads that use one topic until `stop`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, pause_s: float = 0.02) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.pause_s = pause_s
        self.events: list[Event] = []
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, producers: int, consumers: int) -> None:
        for number in range(producers):
            self._run(self._produce, f"p{number}")
        for number in range(consumers):
            self._run(self._consume, f"c{number}")

    def _run(self, work: Any, name: str) -> None:
        thread = threading.Thread(target=work, args=(name,), name=name)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    # --- producing ---------------------------------------------------------------------------------

    def _produce(self, name: str) -> None:
        numbers = itertools.count(1)
        while not self._stopping.is_set():
            producer = confluent_kafka.Producer(
                {
                    **QUIET,
                    "bootstrap.servers": self.bootstrap,
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 1,
                    "message.timeout.ms": 30_000,
                    "socket.timeout.ms": 5_000,
                }
            )
            broken = threading.Event()
            while not self._stopping.is_set() and not broken.is_set():
                self._send(producer, name, f"{name}.{next(numbers)}", broken)
                producer.poll(self.pause_s)
            producer.flush(FLUSH_SECONDS)

    def _send(self, producer: Any, name: str, value: str, broken: threading.Event) -> None:
        partition, start = crc32(value.encode()) % self.partitions, time.monotonic()

        def delivered(error: Any, message: Any) -> None:
            if error is not None and error.fatal():
                broken.set()  # this producer can go on no more: another one takes its place
            self.events.append(
                Send(
                    process=name,
                    start=start,
                    end=time.monotonic(),
                    topic=self.topic,
                    partition=partition,
                    value=value,
                    outcome="ok" if error is None else "info",
                    offset=_told(message.offset()) if error is None else -1,
                    idempotent=True,
                )
            )

        producer.produce(self.topic, value.encode(), partition=partition, on_delivery=delivered)

    # --- consuming ---------------------------------------------------------------------------------

    def _consumer(self) -> Any:
        return confluent_kafka.Consumer(
            {
                **QUIET,
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 200,
                "socket.timeout.ms": 5_000,
            }
        )

    def _assign(self, consumer: Any) -> dict[int, int]:
        consumer.assign([TopicPartition(self.topic, number, 0) for number in range(self.partitions)])
        return dict.fromkeys(range(self.partitions), 0)

    def _consume(self, name: str) -> None:
        consumer = self._consumer()
        expected = self._assign(consumer)
        while not self._stopping.is_set():
            self._poll(consumer, name, expected, final=False)
        consumer.close()

    def _poll(self, consumer: Any, name: str, expected: dict[int, int], *, final: bool) -> None:
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for message in consumer.consume(1_000, POLL_SECONDS):
            if message.error() is None:
                found[message.partition()].append((message.offset(), message.value().decode()))
        for partition, records in found.items():
            event = Poll(
                process=name,
                start=time.monotonic(),
                end=time.monotonic(),
                topic=self.topic,
                partition=partition,
                position=expected[partition],
                next_position=records[-1][0] + 1,
                records=records,
                final=final,
            )
            expected[partition] = event.next_position
            self.events.append(event)

    def read_everything(self) -> None:
        """The last look, after everything was healed."""
        consumer = self._consumer()
        expected = self._assign(consumer)
        deadline = time.monotonic() + FINAL_SECONDS_MAX
        ends = {number: self._end(consumer, number, deadline) for number in range(self.partitions)}
        while expected != ends:
            assert time.monotonic() < deadline, f"read up to {expected} of {ends}"
            self._poll(consumer, "final", expected, final=True)
        consumer.close()

    def _end(self, consumer: Any, partition: int, deadline: float) -> int:
        """librdkafka does not ask again when leaders have just moved, as they do once all nodes are back."""
        while True:
            try:
                return int(consumer.get_watermark_offsets(TopicPartition(self.topic, partition), 60)[1])
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() not in LEADER_MOVED or time.monotonic() > deadline:
                    raise
                consumer.list_topics(self.topic, 60)


def _told(offset: int | None) -> int:
    """librdkafka may hold a record to be acknowledged because a later one is, and then knows no offset."""
    return -1 if offset is None else offset
