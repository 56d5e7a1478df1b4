"""Some consumers of one library in one process, to be killed: prints `partition offset` for every record.

    python churn_worker.py LIBRARY BOOTSTRAP GROUP TOPIC COUNT

SIGTERM lets them leave; SIGKILL does not ask. Lines go out in one write each, before anything is committed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

STOP = threading.Event()


def seen(pairs: list[tuple[int, int]]) -> None:
    if pairs:
        os.write(1, "".join(f"{partition} {offset}\n" for partition, offset in pairs).encode())


def run_kafka_python(bootstrap: str, group: str, topic: str) -> None:
    import kafka

    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=1_000,
        auto_commit_interval_ms=200,
    )
    while not STOP.is_set():
        found = consumer.poll(timeout_ms=200)
        seen([(record.partition, record.offset) for records in found.values() for record in records])
    consumer.close()


def run_librdkafka(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    import confluent_kafka

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
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=1_000,
        auto_commit_interval_ms=200,
    )
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
