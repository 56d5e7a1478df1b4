"""What is measured on three nodes; every load runs the same way against either cluster."""

from __future__ import annotations

import queue
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
    def start(self, *node_ids: int) -> float: ...
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


def producer_of(brokers: Brokers, **config: object) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {"bootstrap.servers": brokers.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0, **config}
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
    """kafka-python, one message at a time in each thread, producers shared among threads.

    Producers do not try again by themselves: every error that a client meets counts.
    """
    create(admin_of(brokers), "threads", partitions=PARTITIONS)
    settle(brokers, "threads")
    producers = [
        KafkaProducer(bootstrap_servers=brokers.bootstrap.split(","), acks="all", linger_ms=0, retries=0)
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


def many_sends(brokers: Brokers, seconds: float) -> Results:
    """The same with librdkafka, whose interpreter is not the limit: each of 128 slots sends its next message
    when its last one is acknowledged. Retries are off, and errors of connections count too."""
    topic = "sends"
    create(admin_of(brokers), topic, partitions=PARTITIONS)
    settle(brokers, topic)
    taken: list[float] = []
    failures: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "retries": 0,
            "log_level": 0,
            "error_cb": failures.append,
        }
    )
    value = b"x" * RECORD_BYTES
    under_way = THREADS

    def start(partition: int) -> None:
        answer = partial(delivered, partition, time.monotonic())
        producer.produce(topic, value, partition=partition, on_delivery=answer)

    def delivered(partition: int, sent_at: float, error: Any, _: Any) -> None:
        nonlocal under_way
        now = time.monotonic()
        failures.append(error) if error else taken.append(1000 * (now - sent_at))
        if now < until:
            start(partition)
        else:
            under_way -= 1

    producer.list_topics(topic, timeout=30)
    began = time.monotonic()
    until = began + seconds
    for slot in range(THREADS):
        start(slot % PARTITIONS)
    while under_way:
        producer.poll(0.1)
        if time.monotonic() > until + 60:
            raise RuntimeError(f"{under_way} sends were not answered")
    elapsed = time.monotonic() - began
    return {
        "128 sends by librdkafka acks=all, msg/s": len(taken) / elapsed,
        "128 sends by librdkafka acks=all, p50 ms": percentile(taken, 0.5),
        "128 sends by librdkafka acks=all, p95 ms": percentile(taken, 0.95),
        "128 sends by librdkafka acks=all, p99 ms": percentile(taken, 0.99),
        "128 sends by librdkafka acks=all, failed": len(failures),
    }


def end_of(consumer: confluent_kafka.Consumer, topic: str) -> int:
    """Where partition 0 ends. The broker that is asked may not know a new topic yet."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return int(consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=5)[1])
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def wake(brokers: Brokers, count: int) -> Results:
    """How long after its acknowledgement a record reaches a consumer that long-polls for it (S26)."""
    create(admin_of(brokers), "wake")
    settle(brokers, "wake")
    settings = {"bootstrap.servers": brokers.bootstrap, "group.id": "wake", "log_level": 0}
    consumer = confluent_kafka.Consumer({**settings, "fetch.wait.max.ms": 5_000, "fetch.min.bytes": 1})
    consumer.assign([confluent_kafka.TopicPartition("wake", 0, end_of(consumer, "wake"))])
    arrived: queue.Queue[float] = queue.Queue()

    def receive() -> None:
        while arrived.qsize() < count + 1 and not is_over.is_set():
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                arrived.put(time.monotonic())

    is_over = threading.Event()
    receiver = threading.Thread(target=receive)
    receiver.start()
    producer = producer_of(brokers)
    acked = []
    for _ in range(count + 1):
        send(producer, "wake")
        acked.append(time.monotonic())
        time.sleep(0.005)  # the consumer asks again
    receiver.join(60)
    is_over.set()
    taken = [1000 * max(0.0, arrived.get_nowait() - moment) for moment in acked]
    consumer.close()
    return {
        "long poll answered after the commit, p50 ms": percentile(taken[1:], 0.5),
        "long poll answered after the commit, p99 ms": percentile(taken[1:], 0.99),
    }


def acks_1(brokers: Brokers, count: int) -> Results:
    """Records sent with acks=1 are all consumed (S24)."""
    create(admin_of(brokers), "acks-1", partitions=3)
    settle(brokers, "acks-1")
    settings = {"bootstrap.servers": brokers.bootstrap, "log_level": 0}
    producer = confluent_kafka.Producer({**settings, "acks": 1, "linger.ms": 0})
    for number in range(count):
        producer.produce("acks-1", b"x" * 100, partition=number % 3)
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("not every record was sent")
    consumer = confluent_kafka.Consumer({**settings, "group.id": "acks-1"})
    consumer.assign([confluent_kafka.TopicPartition("acks-1", number, 1) for number in range(3)])
    found, until = 0, time.monotonic() + 30
    while found < count and time.monotonic() < until:
        found += sum(message.error() is None for message in consumer.consume(1_000, 0.2))
    consumer.close()
    return {"consumed of what acks=1 took, %": 100 * found / count}


def visible(brokers: Brokers, count: int) -> Results:
    """From the answer to CreateTopics until every node names the topic; then of 100 made at once (S14)."""
    admin = admin_of(brokers)
    nodes = [
        AdminClient({"bootstrap.servers": address, "log_level": 0})
        for address in brokers.bootstrap.split(",")
    ]

    def until_seen(names: set[str]) -> float:
        began = time.monotonic()
        for node in nodes:
            while not names <= node.list_topics(timeout=30).topics.keys():
                pass
        return time.monotonic() - began

    until_seen(set())
    taken = []
    for number in range(count):
        create(admin, f"seen-{number}")
        taken.append(1000 * until_seen({f"seen-{number}"}))
    many = {f"seen-many-{number}" for number in range(100)}
    began = time.monotonic()
    create(admin, *many)
    until_seen(many)
    return {
        "topic named by every node, p99 ms": percentile(taken, 0.99),
        "100 topics at once, named by every node, s": time.monotonic() - began,
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
        "create one topic, mean ms": sum(taken) / len(taken),
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
