"""What the cells of the matrix do, the same way against either kind of broker. Figures end with their unit.

Every client is neutral: Apache Kafka's own tools, librdkafka, kafka-python.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import confluent_kafka
from kafka import KafkaProducer

from bench.matrix_brokers import Side
from bench.windows import percentile
from bench.workloads import CLIENT_OPTIONS, TOOLS, consume, produce
from tests import java

DEADLINE_S: Final = 300
PARTITIONS: Final = 6
BULK: Final = ("batch.size=65536", "linger.ms=5")
MESSAGE_BYTES: Final = 256
BULK_BYTES: Final = 400_000_000
"""What a bulk cell writes at scale 1; two million records at most."""
BULK_RECORDS_MAX: Final = 2_000_000
THREADS: Final = 128
SHARED_PRODUCERS: Final = 8

Found = Mapping[str, float]


def records_of(size: int, scale: float) -> int:
    return max(1_000, int(min(BULK_RECORDS_MAX, BULK_BYTES // size) * scale))


def bulk(side: Side, topic: str, *, size: int, acks: str, codec: str, scale: float) -> Found:
    """The tool's rate, and what the brokers' processors spent on it."""
    count = records_of(size, scale)
    side.create(topic, partitions=PARTITIONS)
    before = side.cpu_seconds()
    rate = produce(side, topic, count, size, *BULK, f"acks={acks}", f"compression.type={codec}")
    spent = side.cpu_seconds() - before
    loaded = side.rss_mb()
    side.delete(topic)
    return {
        "records/s": rate,
        "broker CPU s per million records": spent / count * 1e6,
        "memory loaded, MB": loaded,
    }


def alone(side: Side, topic: str, *, under_way: int, scale: float) -> Found:
    """One record per request, so many requests at the same time."""
    count = max(1_000, int((3_000 if under_way == 1 else 30_000) * scale))
    side.create(topic, partitions=PARTITIONS)
    before = side.cpu_seconds()
    limit = f"max.in.flight.requests.per.connection={under_way}"
    rate = produce(
        side,
        topic,
        count,
        MESSAGE_BYTES,
        "batch.size=1",
        "linger.ms=0",
        "acks=all",
        "enable.idempotence=false",
        limit,
    )
    spent = side.cpu_seconds() - before
    side.delete(topic)
    return {"records/s": rate, "broker CPU s per million records": spent / count * 1e6}


def consume_cold(side: Side, topic: str, *, size: int, scale: float) -> Found:
    """Of files that the kernel has dropped from its memory."""
    count = records_of(size, scale)
    side.create(topic, partitions=PARTITIONS)
    produce(side, topic, count, size, *BULK)
    side.create(f"{topic}-after")
    produce(
        side, f"{topic}-after", records_of(1_024, 0.25 * scale), 1_024, *BULK
    )  # out of the tail in memory
    side.forget_pages()
    before = side.cpu_seconds()
    rate = consume(side, topic, count)
    spent = side.cpu_seconds() - before
    side.delete(topic, f"{topic}-after")
    return {"records/s": rate, "broker CPU s per million records": spent / count * 1e6}


def consume_tail(side: Side, topic: str, *, size: int, scale: float) -> Found:
    """While they are being written, as fast as they can be."""
    count = records_of(size, scale)
    side.create(topic, partitions=PARTITIONS)
    reader = subprocess.Popen(
        java.command(
            f"{TOOLS}.ConsumerPerformance",
            *("--bootstrap-server", side.bootstrap, "--topic", topic, "--messages", str(count)),
            *("--timeout", "60000", "--hide-header"),
            options=CLIENT_OPTIONS,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        produce(side, topic, count, size, *BULK)
        out, errors = reader.communicate(timeout=DEADLINE_S)
    finally:
        reader.kill()
    rows = [line for line in out.splitlines() if line.count(",") >= 9]
    row = [field.strip() for field in rows[-1].split(",")] if rows else []
    if not row or int(row[4]) < count:
        raise java.JavaFailed(f"not all of {count} records were read: {out[-300:]} {errors[-300:]}")
    side.delete(topic)
    return {"records/s": float(row[9])}


def end_to_end(side: Side, topic: str, *, rate: int, seconds: float) -> Found:
    """From the moment when a record was due until a consumer has it. A record that is sent late counts from
    when it should have been sent, so no stall is hidden."""
    side.create(topic)
    reader = side.consumer(topic, **{"fetch.wait.max.ms": 500, "fetch.min.bytes": 1})
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    count, warm_up = int(rate * seconds), int(rate)
    taken: queue.Queue[float] = queue.Queue()
    stop = threading.Event()
    begin = 0.0

    def read() -> None:
        seen = 0
        while seen < count + warm_up and not stop.is_set():
            message = reader.poll(0.2)  # `consume` would wait until it has as many as it was asked for
            if message is not None and message.error() is None:
                due = begin + seen / rate
                if seen >= warm_up:
                    taken.put(1000 * (time.monotonic() - due))
                seen += 1

    producer = side.producer()
    producer.list_topics(topic, timeout=30)
    reader.poll(0.2)
    receiver = threading.Thread(target=read)
    begin = time.monotonic() + 0.2
    receiver.start()
    value = b"x" * MESSAGE_BYTES
    for number in range(count + warm_up):
        wait = begin + number / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    producer.flush(60)
    receiver.join(60)
    stop.set()
    receiver.join()
    reader.close()
    side.delete(topic)
    values = [taken.get_nowait() for _ in range(taken.qsize())]
    if len(values) < count:
        raise RuntimeError(f"{len(values)} of {count} records reached the consumer")
    return {
        f"{name}, ms": percentile(values, at) for name, at in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }


def consumers(side: Side, topic: str, *, count: int, scale: float) -> Found:
    """All read the same log from its start at the same time."""
    size = 10_000
    records = max(500, int(6_000 * scale))
    side.create(topic)
    produce(side, topic, records, size, *BULK)
    readers = [side.consumer(f"{topic}-{number}") for number in range(count)]
    for reader in readers:
        reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    left = dict.fromkeys(range(count), records)
    began = time.monotonic()
    while left:
        for number in list(left):
            left[number] -= sum(one.error() is None for one in readers[number].consume(500, 0.01))
            if left[number] <= 0:
                del left[number]
        if time.monotonic() - began > DEADLINE_S:
            raise RuntimeError(f"{len(left)} of {count} consumers did not get everything")
    elapsed = time.monotonic() - began
    for reader in readers:
        reader.close()
    side.delete(topic)
    return {"records/s": records * count / elapsed}


def transactions(side: Side, topic: str, *, seconds: float) -> Found:
    """One producer; ten records a transaction."""
    side.create(topic, partitions=PARTITIONS)
    producer = side.producer(**{"transactional.id": topic, "linger.ms": 1})
    producer.init_transactions(60)
    done, until = 0, time.monotonic() + seconds
    began = time.monotonic()
    while time.monotonic() < until:
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, b"x" * MESSAGE_BYTES, partition=number % PARTITIONS)
        producer.commit_transaction(60)
        done += 1
    elapsed = time.monotonic() - began
    side.delete(topic)
    return {"transactions/s": done / elapsed}


def group_join(side: Side, topic: str, *, members: int) -> Found:
    """They join at the same time; until each has its share."""
    side.create(topic, partitions=members)
    joining = [side.consumer(topic) for _ in range(members)]
    began = time.monotonic()
    for one in joining:
        one.subscribe([topic])
    while sum(len(one.assignment()) == 1 for one in joining) < members:
        for one in joining:
            one.poll(0)
        time.sleep(0.002)
        if time.monotonic() - began > DEADLINE_S:
            raise RuntimeError(f"not all of {members} members got a partition")
    elapsed = time.monotonic() - began
    closing = [threading.Thread(target=one.close) for one in joining]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    side.delete(topic)
    return {"s": elapsed}


def topics(side: Side, topic: str, *, count: int) -> Found:
    """One after the other, then a hundred in one request."""
    single = [f"{topic}-single-{number}" for number in range(count)]
    taken = [1000 * side.create(name) for name in single]
    many = [f"{topic}-many-{number}" for number in range(100)]
    together = side.create(*many)
    side.delete(*single, *many)
    return {
        "one, p50, ms": percentile(taken, 0.5),
        "one, p99, ms": percentile(taken, 0.99),
        "100 at once, s": together,
    }


def threads(side: Side, topic: str, *, seconds: float) -> Found:
    """kafka-python: each of 128 threads sends its next record when its last one is acknowledged."""
    side.create(topic, partitions=PARTITIONS)
    producers = [
        KafkaProducer(bootstrap_servers=side.bootstrap.split(","), acks="all", linger_ms=0, retries=0)
        for _ in range(SHARED_PRODUCERS)
    ]
    taken: list[float] = []
    failures: list[Exception] = []
    until = time.monotonic() + seconds

    def work(producer: KafkaProducer) -> None:
        while (began := time.monotonic()) < until:
            try:
                producer.send(topic, b"x" * MESSAGE_BYTES).get(60)
                taken.append(1000 * (time.monotonic() - began))
            except Exception as error:
                failures.append(error)

    running = [
        threading.Thread(target=work, args=(producers[number % SHARED_PRODUCERS],))
        for number in range(THREADS)
    ]
    began = time.monotonic()
    for one in running:
        one.start()
    for one in running:
        one.join()
    elapsed = time.monotonic() - began
    for producer in producers:
        producer.close()
    side.delete(topic)
    if failures:
        raise RuntimeError(f"{len(failures)} sends failed: {failures[0]!r}")
    return {"records/s": len(taken) / elapsed, "p99, ms": percentile(taken, 0.99)}


def send(producer: confluent_kafka.Producer, topic: str) -> None:
    outcomes: list[Any] = []
    answered = partial(lambda error, _message: outcomes.append(error))
    producer.produce(topic, b"x" * 100, partition=0, on_delivery=answered)
    producer.flush(DEADLINE_S)
    if outcomes != [None]:
        raise RuntimeError(f"a record did not arrive: {outcomes}")


def failover(side: Side, topic: str) -> Found:
    """The leader is killed between two records; until the next one is acknowledged. A lone node is started
    again at once, so there it is the time of its recovery."""
    side.create(topic)
    producer = side.producer(**{"retry.backoff.ms": 10, "retry.backoff.max.ms": 50})
    for _ in range(50):
        send(producer, topic)
    began = time.monotonic()
    side.kill_leader(topic)
    send(producer, topic)
    return {"s": time.monotonic() - began}
