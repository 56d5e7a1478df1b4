"""What `bench.curves` measures at each size, the same way against either broker."""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator, Mapping

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.workloads import produce
from tests.process import HOST, ServerProcess

DEADLINE_S = 300
PARTITIONS_A_TOPIC = 100
PROBES = 200
BULK = ("batch.size=65536", "linger.ms=5")
LOG = "log"
LOG_RECORD_BYTES = 10_000
SHARED_MB = 60
"""What each of several consumers of one log reads."""
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def create(broker: ServerProcess, topics: Mapping[str, int]) -> float:
    """Topics with their numbers of partitions, all in one request; the seconds until all are there."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.list_topics(timeout=30)
    began = time.monotonic()
    wanted = [NewTopic(name, count, 1) for name, count in topics.items()]
    made = admin.create_topics(wanted, operation_timeout=DEADLINE_S, request_timeout=DEADLINE_S)
    for future in made.values():
        future.result(DEADLINE_S)
    return time.monotonic() - began


def one_record_ms(broker: ServerProcess, topic: str = "probed") -> float:
    """Median of single records, each sent when the one before was acknowledged."""
    create(broker, {topic: 1})
    config = {"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    producer = confluent_kafka.Producer(config)
    outcomes: list[object] = []
    taken = []

    def delivered(error: object, _: object) -> None:
        outcomes.append(error)

    for _ in range(PROBES + 20):
        began = time.monotonic()
        producer.produce(topic, b"x" * 100, on_delivery=delivered)
        producer.flush(DEADLINE_S)
        taken.append((time.monotonic() - began) * 1000)
    if outcomes != [None] * len(taken):
        raise RuntimeError(f"records did not arrive: {[one for one in outcomes if one is not None]}")
    return statistics.median(taken[20:])


def partitions(broker: ServerProcess, count: int) -> Mapping[str, float]:
    before = broker.rss_bytes()
    whole, rest = divmod(count, PARTITIONS_A_TOPIC)
    topics = {f"many-{number}": PARTITIONS_A_TOPIC for number in range(whole)} | (
        {"rest": rest} if rest else {}
    )
    took = create(broker, topics)
    grown = (broker.rss_bytes() - before) / 1e6
    record = one_record_ms(broker)
    broker.stop(timeout_s=DEADLINE_S)
    return {
        "creation, s": took,
        "memory, MB": max(0.0, grown),
        "one record p50, ms": record,
        "start, s": broker.start(timeout_s=DEADLINE_S),
    }


@contextlib.contextmanager
def connected(broker: ServerProcess, count: int) -> Iterator[None]:
    """Connections that were answered once and then say nothing."""
    with contextlib.ExitStack() as held:
        for _ in range(count):
            one = held.enter_context(socket.create_connection((HOST, broker.kafka_port), timeout=30))
            one.sendall(API_VERSIONS)
            (size,) = struct.unpack(">i", one.recv(4, socket.MSG_WAITALL))
            one.recv(size, socket.MSG_WAITALL)
        yield


def connections(broker: ServerProcess, count: int) -> Mapping[str, float]:
    one_record_ms(broker, "warming-up")
    before = broker.rss_bytes()
    with connected(broker, count):
        grown = (broker.rss_bytes() - before) / 1e6
        return {"memory, MB": max(0.0, grown), "one record p50, ms": one_record_ms(broker)}


def consumers(broker: ServerProcess, count: int) -> Mapping[str, float]:
    """All read the same partition from its start at the same time, each all of it."""
    records = SHARED_MB * 1_000_000 // LOG_RECORD_BYTES
    produce(broker, LOG, records, LOG_RECORD_BYTES, *BULK)
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "curves", "log_level": 0}
    readers = [confluent_kafka.Consumer({**config, "enable.auto.commit": False}) for _ in range(count)]
    for reader in readers:
        reader.assign([confluent_kafka.TopicPartition(LOG, 0, 0)])
    left = dict.fromkeys(range(count), records)
    cpu_before, began = broker.cpu_seconds(), time.monotonic()
    while left:
        for number in list(left):
            left[number] -= sum(one.error() is None for one in readers[number].consume(500, 0.01))
            if left[number] <= 0:
                del left[number]
        if time.monotonic() - began > DEADLINE_S:
            raise RuntimeError(f"{len(left)} of {count} consumers did not get everything")
    figures = {
        "time until all have read all, s": time.monotonic() - began,
        "broker CPU, s": broker.cpu_seconds() - cpu_before,
    }
    for reader in readers:
        reader.close()
    return figures


def members(broker: ServerProcess, count: int) -> Mapping[str, float]:
    """They join one group at the same time; until each has one of as many partitions."""
    create(broker, {"shared": count})
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "members", "log_level": 0}
    joining = [confluent_kafka.Consumer({**config, "session.timeout.ms": 45_000}) for _ in range(count)]
    cpu_before, began = broker.cpu_seconds(), time.monotonic()
    for one in joining:
        one.subscribe(["shared"])
    while sum(len(one.assignment()) == 1 for one in joining) < count:
        for one in joining:
            one.poll(0)
        time.sleep(0.005)
        if time.monotonic() - began > DEADLINE_S:
            raise RuntimeError(f"not all of {count} members got a partition")
    figures = {
        "time until each has its share, s": time.monotonic() - began,
        "broker CPU, s": broker.cpu_seconds() - cpu_before,
    }
    closing = [threading.Thread(target=one.close) for one in joining]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    return figures


def log_size(broker: ServerProcess, megabytes: int) -> Mapping[str, float]:
    produce(broker, LOG, megabytes * 1_000_000 // LOG_RECORD_BYTES, LOG_RECORD_BYTES, *BULK)
    broker.stop(timeout_s=DEADLINE_S)
    return {"start, s": broker.start(timeout_s=DEADLINE_S), "memory, MB": broker.rss_bytes() / 1e6}


def unflushed(broker: ServerProcess, megabytes: int) -> Mapping[str, float]:
    produce(broker, LOG, megabytes * 1_000_000 // LOG_RECORD_BYTES, LOG_RECORD_BYTES, *BULK)
    broker.kill()
    return {"recovery, s": broker.start(timeout_s=DEADLINE_S), "memory, MB": broker.rss_bytes() / 1e6}
