"""A node that may open few files meets many idle connections, or has many partitions: all of it goes on."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from chronik.wire.api import ApiKey
from tests.node import ChronikNode
from tests.wire import WireClient

FILES_MAX = 200
IDLE = 230
PARTITIONS = 600

pytestmark = pytest.mark.usefixtures("only_chronik")


class Confined(ChronikNode):
    def command(self) -> list[str]:
        return ["prlimit", f"--nofile={FILES_MAX}:{FILES_MAX}", *super().command()]

    @property
    def http_port(self) -> int:
        return int(str(self.settings["http_port"]))

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as answer:
            return bytes(answer.read())

    def metric(self, sample: str) -> float:
        lines = self.get("/metrics").decode().splitlines()
        return float(next(line for line in lines if line.startswith(sample + " ")).rsplit(" ", 1)[1])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Confined]:
    node = Confined(tmp_path, disable_realtime_index=True)
    node.start()
    yield node
    node.kill()


def produce(producer: confluent_kafka.Producer, count: int, *, partitions: int = 8) -> None:
    failures: list[object] = []

    def told(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(count):
        producer.produce("orders", b"x" * 1000, partition=number % partitions, on_delivery=told)
    assert producer.flush(20) == 0
    assert failures == []


def wait_for_segments(node: Confined) -> None:
    deadline = time.monotonic() + 20
    while node.metric("chronik_flush_pending_bytes") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert node.metric("chronik_flush_pending_bytes") == 0


@pytest.mark.parametrize("port", ["kafka_port", "http_port"])
def test_idle_connections_do_not_use_up_the_descriptors(node: Confined, port: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic("orders", 8)])["orders"].result(20)
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "acks": "all"})
    produce(producer, 8)
    with contextlib.ExitStack() as open_ones:
        for _ in range(IDLE):
            idle = socket.create_connection(("127.0.0.1", int(str(node.settings[port]))), timeout=5)
            open_ones.enter_context(idle)
        assert json.loads(node.get("/health"))["status"] == "ok"
        produce(producer, 800)
        wait_for_segments(node)
        limit = "per_ip" if port == "kafka_port" else "http"
        assert node.metric(f'chronik_connections_refused_total{{limit="{limit}"}}') > IDLE / 3
        assert node.metric("process_open_fds") < FILES_MAX - 20
    log = node.log.read_text()
    assert "open files: at most 200" in log
    assert "Too many open files" not in log
    assert log.count("refused a connection") + log.count("no room for one more HTTP connection") == 1


def records_at(node: Confined, offset: int) -> int:
    """In how many partitions a fetch finds records at `offset`."""
    wanted = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1_100}
        for number in range(PARTITIONS)
    ]
    fields = {"max_wait": 0, "max_bytes": 1 << 26, "session_epoch": -1}
    client = WireClient(node.kafka_port, timeout_s=60)
    answer = client.ask(ApiKey.FETCH, 12, {**fields, "topics": [{"topic": "orders", "partitions": wanted}]})
    client.close()
    return sum(bool(one.records) for topic in answer.responses for one in topic.partitions)


def test_partitions_do_not_use_up_the_descriptors(node: Confined) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic("orders", PARTITIONS)])["orders"].result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "acks": "all"})
    produce(producer, PARTITIONS, partitions=PARTITIONS)
    wait_for_segments(node)
    node.kill()
    node.start()
    assert records_at(node, 0) == PARTITIONS, "from files: nothing is in memory after a start"
    produce(producer, PARTITIONS, partitions=PARTITIONS)
    wait_for_segments(node)
    assert records_at(node, 1) == PARTITIONS
    assert node.metric("chronik_open_segments") <= node.metric("chronik_open_segments_max") == FILES_MAX // 8
    assert node.metric("chronik_open_segments_evicted_total") > PARTITIONS
    assert node.metric("process_open_fds") < FILES_MAX - 100
    assert "Too many open files" not in node.log.read_text()
