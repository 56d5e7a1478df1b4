"""Some consumers of one library in one process, to be killed: prints `partition offset` for every record.

    python churn_worker.py LIBRARY BOOTSTRAP GROUP TOPIC COUNT

Libraries that know their generation also print `own GENERATION MEMBER PARTITION...` for every assignment.
SIGTERM lets them leave; SIGKILL does not ask. Lines go out in one write each, before anything is committed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

import aiokafka
import confluent_kafka
import kafka

STOP = threading.Event()


def seen(pairs: list[tuple[int, int]]) -> None:
    if pairs:
        os.write(1, "".join(f"{partition} {offset}\n" for partition, offset in pairs).encode())


def owned(generation: int, member_id: str, partitions: Iterable[Any]) -> None:
    numbers = " ".join(str(one.partition) for one in partitions)
    os.write(1, f"own {generation} {member_id} {numbers}\n".encode())


class KafkaPythonListener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: kafka.KafkaConsumer) -> None:
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        pass

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        generation = self._consumer._coordinator._generation
        owned(generation.generation_id, generation.member_id, assigned)


class AiokafkaListener(aiokafka.ConsumerRebalanceListener):
    def __init__(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        coordinator: Any = self._consumer._coordinator
        owned(coordinator.generation, coordinator.member_id, assigned)


def run_kafka_python(bootstrap: str, group: str, topic: str) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=1_000,
        auto_commit_interval_ms=200,
    )
    consumer.subscribe([topic], listener=KafkaPythonListener(consumer))
    while not STOP.is_set():
        found = consumer.poll(timeout_ms=200)
        seen([(record.partition, record.offset) for records in found.values() for record in records])
    consumer.close()


def run_librdkafka(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "group.protocol": protocol,
    }
    if protocol == "classic":
        config |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe([topic])
    while not STOP.is_set():
        found = [message for message in consumer.consume(200, 0.2) if message.error() is None]
        seen([(message.partition(), message.offset()) for message in found])
    consumer.close()


async def run_aiokafka(bootstrap: str, group: str, topic: str) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=1_000,
        auto_commit_interval_ms=200,
    )
    consumer.subscribe([topic], listener=AiokafkaListener(consumer))
    await consumer.start()
    while not STOP.is_set():
        found = await consumer.getmany(timeout_ms=200)
        seen([(record.partition, record.offset) for records in found.values() for record in records])
    await consumer.stop()


def main() -> None:
    library, bootstrap, group, topic, count = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())
    if library == "aiokafka":

        async def all_of_them() -> None:
            await asyncio.gather(*(run_aiokafka(bootstrap, group, topic) for _ in range(int(count))))

        asyncio.run(all_of_them())
        return
    target, extra = {
        "kafka-python": (run_kafka_python, ()),
        "librdkafka": (run_librdkafka, ("classic",)),
        "librdkafka-consumer": (run_librdkafka, ("consumer",)),
    }[library]
    threads = [
        threading.Thread(target=target, args=(bootstrap, group, topic, *extra)) for _ in range(int(count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
