"""What is measured on three nodes; every load runs the same way against either cluster."""

from __future__ import annotations

import re
import threading
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaProducer

from bench.windows import percentile
from bench.workloads import CLIENT_OPTIONS, TOOLS
from tests import java

PARTITIONS = 6
RECORD_BYTES = 256
THREADS = 128
SHARED_PRODUCERS = 8
DEADLINE_S = 300


class Brokers(Protocol):
    """Three nodes, whoever made them."""

    @property
    def nodes(self) -> tuple[int, ...]: ...
    @property
    def bootstrap(self) -> str: ...
    def leader_of(self, topic: str, partition: int = 0) -> int: ...
    def kill(self, node_id: int) -> None: ...
    def pid(self, node_id: int) -> int | None: ...


Results = dict[str, float]


def admin_of(brokers: Brokers) -> AdminClient:
    client = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    client.list_topics(timeout=30)
    return client


def create(admin: AdminClient, *names: str, partitions: int = 1) -> float:
    began = time.monotonic()
    for future in admin.create_topics([NewTopic(name, partitions, 3) for name in names]).values():
        future.result(60)
    return time.monotonic() - began


def producer_of(brokers: Brokers) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {"bootstrap.servers": brokers.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )


def settle(brokers: Brokers, topic: str) -> None:
    """Write until every partition takes records, so that no load pays for the topic's creation."""
    producer = producer_of(brokers)
    for partition in producer.list_topics(topic, timeout=30).topics[topic].partitions:
        send(producer, topic, partition)


def send(producer: confluent_kafka.Producer, topic: str, partition: int = 0) -> float:
    outcomes: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        outcomes.append(error)

    began = time.monotonic()
    producer.produce(topic, b"x" * 100, partition=partition, on_delivery=delivered)
    producer.flush(60)
    if outcomes != [None]:
        raise RuntimeError(f"a record did not arrive: {outcomes}")
    return time.monotonic() - began


def one_message(brokers: Brokers, count: int) -> Results:
    create(admin_of(brokers), "one")
    settle(brokers, "one")
    producer = producer_of(brokers)
    send(producer, "one")
    taken = [1000 * send(producer, "one") for _ in range(count)]
    return {
        "one message acks=all, p50 ms": percentile(taken, 0.5),
        "one message acks=all, p99 ms": percentile(taken, 0.99),
    }


def many_threads(brokers: Brokers, seconds: float) -> Results:
    """kafka-python, one message at a time in each thread, producers shared among threads."""
    create(admin_of(brokers), "threads", partitions=PARTITIONS)
    settle(brokers, "threads")
    producers = [
        KafkaProducer(bootstrap_servers=brokers.bootstrap.split(","), acks="all", linger_ms=0)
        for _ in range(SHARED_PRODUCERS)
    ]
    taken: list[float] = []
    failures: list[Exception] = []
    until = time.monotonic() + seconds

    def work(producer: KafkaProducer) -> None:
        while (began := time.monotonic()) < until:
            try:
                producer.send("threads", b"x" * RECORD_BYTES).get(60)
                taken.append(1000 * (time.monotonic() - began))
            except Exception as error:
                failures.append(error)

    threads = [
        threading.Thread(target=work, args=(producers[number % SHARED_PRODUCERS],))
        for number in range(THREADS)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    for producer in producers:
        producer.close()
    return {
        "128 threads acks=all, msg/s": len(taken) / elapsed,
        "128 threads acks=all, p50 ms": percentile(taken, 0.5),
        "128 threads acks=all, p95 ms": percentile(taken, 0.95),
        "128 threads acks=all, p99 ms": percentile(taken, 0.99),
        "128 threads acks=all, failed": len(failures),
    }


def perf(brokers: Brokers, topic: str, count: int, throughput: int, *properties: str) -> str:
    """The last line of ProducerPerformance."""
    output = java.run(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(RECORD_BYTES)),
        *("--throughput", str(throughput)),
        *("--producer-props", f"bootstrap.servers={brokers.bootstrap}", *properties),
        options=CLIENT_OPTIONS,
        timeout_s=DEADLINE_S,
    )
    line = output.lines()[-1]
    if not line.startswith(f"{count} records sent"):
        raise java.JavaFailed(f"not every record was sent: {output.out[-500:]}")
    return line


def bulk(brokers: Brokers, acks: str, count: int) -> Results:
    topic = f"bulk-{acks}"
    create(admin_of(brokers), topic, partitions=PARTITIONS)
    settle(brokers, topic)
    line = perf(brokers, topic, count, -1, f"acks={acks}", "batch.size=65536", "linger.ms=5")
    found = re.search(r"([\d.,]+) records/sec", line)
    assert found is not None, line
    return {f"bulk 256 B acks={acks}, msg/s": float(found[1].replace(",", "."))}


def paced(brokers: Brokers, seconds: int) -> Results:
    """The tool starts cold and cannot leave that out: its slow records are mostly of its first seconds."""
    create(admin_of(brokers), "paced", partitions=PARTITIONS)
    settle(brokers, "paced")
    line = perf(brokers, "paced", 1000 * seconds, 1000, "acks=all", "linger.ms=0")
    figures = {name: float(value) for value, name in re.findall(r"(\d+) ms (50th|99th)", line)}
    return {
        "1,000 msg/s acks=all, p50 ms": figures["50th"],
        "1,000 msg/s acks=all, p99 ms": figures["99th"],
    }


def paced_finely(brokers: Brokers, seconds: int) -> Results:
    """The same with librdkafka: ProducerPerformance tells whole milliseconds, too coarse for one or two."""
    create(admin_of(brokers), "paced-finely", partitions=PARTITIONS)
    settle(brokers, "paced-finely")
    producer = producer_of(brokers)
    taken: list[float] = []
    failures: list[Any] = []
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            producer.poll(0.1)

    def delivered(began: float, error: Any, _: Any) -> None:
        failures.append(error) if error else taken.append(1000 * (time.monotonic() - began))

    server = threading.Thread(target=serve)
    server.start()
    value = b"x" * RECORD_BYTES
    begin = time.monotonic()
    for number in range(1000 * seconds):
        time.sleep(max(0.0, begin + number / 1000 - time.monotonic()))
        producer.produce("paced-finely", value, on_delivery=partial(delivered, time.monotonic()))
    producer.flush(60)
    is_over.set()
    server.join()
    if failures or len(taken) < 1000 * seconds:
        raise RuntimeError(f"{len(taken)} of {1000 * seconds} records arrived: {failures[:1]}")
    return {
        "1,000 msg/s acks=all by librdkafka, p50 ms": percentile(taken, 0.5),
        "1,000 msg/s acks=all by librdkafka, p99 ms": percentile(taken, 0.99),
    }


def topics(brokers: Brokers, count: int) -> Results:
    admin = admin_of(brokers)
    create(admin, "first")
    taken = [1000 * create(admin, f"single-{number}") for number in range(count)]
    together = create(admin, *(f"together-{number}" for number in range(100)))
    return {
        "create one topic, p50 ms": percentile(taken, 0.5),
        "create one topic, p99 ms": percentile(taken, 0.99),
        "100 topics in a request, topics/s": 100 / together,
    }


def auto_create(brokers: Brokers, count: int) -> Results:
    producer = producer_of(brokers)
    producer.list_topics(timeout=30)
    taken = [1000 * send(producer, f"auto-{uuid.uuid4().hex[:8]}") for _ in range(count)]
    return {"auto-create and produce, p50 ms": percentile(taken, 0.5)}


def memory(brokers: Brokers) -> Results:
    sizes = []
    for node_id in brokers.nodes:
        for line in Path(f"/proc/{brokers.pid(node_id)}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                sizes.append(int(line.split()[1]) / 1000)
    return {"memory a node after the load, MB": sum(sizes) / len(sizes)}


def killed_leader(brokers: Brokers) -> Results:
    """A leader dies under a light load: how long nothing is acknowledged, and whether anything is lost."""
    from tests.cluster.load import Load

    create(admin_of(brokers), "killed", partitions=3)
    with Load(brokers.bootstrap, "killed", 3) as load:
        load.wait_acked(50)
        leader = brokers.leader_of("killed")
        moment = time.monotonic()
        brokers.kill(leader)
        load.wait_acked(50, timeout_s=90)
    pause = load.pause_after(moment, 0)
    load.check()
    return {"pause when a leader is killed, s": pause}
