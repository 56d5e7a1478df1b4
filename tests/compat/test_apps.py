"""Programs that live on Kafka: Streams exactly once, Connect in distributed mode, MirrorMaker 2 (O06)."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import confluent_kafka.admin

from chronik.local.leash import leashed
from chronik.testing import free_ports
from tests import java
from tests.process import HOST, ServerProcess

JAR_SET = "kafka-apps"
CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
DEADLINE_S = 90
COUNT_WORDS = Path(__file__).parent / "foreign" / "java" / "CountWords.java"


class Program:
    """A Java program that runs until it is ended; its output is in `log`."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                leashed(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def said(self, text: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        return text in self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def program(folder: Path, name: str, main: str, *arguments: str) -> Iterator[Program]:
    made = Program(folder, name, java.command(main, *arguments, jar_set=JAR_SET))
    try:
        yield made
    finally:
        made.kill()


def until(fact: Callable[[], bool], what: str, *programs: Program) -> None:
    end = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < end, what + "".join(one.log.read_text()[-3000:] for one in programs)
        time.sleep(0.05)


def create(broker: ServerProcess, topic: str, partitions: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, partitions, 1)])[topic].result(60)


def produce(broker: ServerProcess, topic: str, words: list[str]) -> None:
    producer = ck.Producer({"bootstrap.servers": broker.bootstrap})
    for number, word in enumerate(words):
        producer.produce(topic, word.encode(), key=str(number).encode())
    assert producer.flush(DEADLINE_S) == 0


class Reader:
    """All committed records of a topic so far, in the order of each partition."""

    def __init__(self, broker: ServerProcess, topic: str) -> None:
        self.records: list[tuple[str, str]] = []
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": f"{topic}-reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                "allow.auto.create.topics": False,
            }
        )
        self._consumer.subscribe([topic])

    def values(self) -> list[str]:
        self._poll()
        return [value for _, value in self.records]

    def last(self) -> dict[str, str]:
        self._poll()
        return dict(self.records)

    def _poll(self) -> None:
        for message in self._consumer.consume(1_000, timeout=0.2):
            if message.error() is None:
                self.records.append(((message.key() or b"").decode(), (message.value() or b"").decode()))

    def close(self) -> None:
        self._consumer.close()


def test_streams_count_exactly_once_although_an_instance_is_killed(
    broker: ServerProcess, topic: str, tmp_path: Path
) -> None:
    words = [f"word{number % 7}" for number in range(600)]
    output = f"{topic}-out"
    create(broker, topic, 4)
    create(broker, output, 1)
    classes = tmp_path / "classes"
    subprocess.run(
        ["javac", "-cp", java.classpath(JAR_SET), "-d", str(classes), str(COUNT_WORDS)], check=True
    )
    reader = Reader(broker, output)

    def instance(number: int) -> Program:
        command = java.command(
            "CountWords", broker.bootstrap, topic, output, str(tmp_path / f"state{number}"), jar_set=JAR_SET
        )
        at = command.index("-cp") + 1
        command[at] = f"{classes}:{command[at]}"
        return Program(tmp_path, f"streams{number}", command)

    first, second = instance(1), instance(2)
    try:
        produce(broker, topic, words[:300])
        until(lambda: len(reader.last()) == 7, "no word was counted", first, second)
        until(lambda: second.said("state RUNNING"), "the second instance does not run", second)
        produce(broker, topic, words[300:])
        first.kill()
        expected = {word: str(count) for word, count in Counter(words).items()}
        until(lambda: reader.last() == expected, "words are missing or counted twice", second)
    finally:
        first.kill()
        second.kill()
        reader.close()


def properties(path: Path, **values: object) -> str:
    path.write_text(
        "".join(f"{name.replace('__', '->').replace('_', '.')}={value}\n" for name, value in values.items())
    )
    return str(path)


def rest(port: int, path: str, body: Any = None) -> Any:
    """What Connect's REST interface answers; None while it does not."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{HOST}:{port}{path}", data=data, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def test_connect_with_an_exactly_once_source(broker: ServerProcess, topic: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    source = tmp_path / "lines.txt"
    source.write_text("".join(f"line {number}\n" for number in range(50)))
    config = properties(
        tmp_path / "worker.properties",
        bootstrap_servers=broker.bootstrap,
        group_id=f"{topic}-connect",
        listeners=f"http://{HOST}:{port}",
        key_converter="org.apache.kafka.connect.storage.StringConverter",
        value_converter="org.apache.kafka.connect.storage.StringConverter",
        exactly_once_source_support="enabled",
        offset_flush_interval_ms=500,
        **{
            f"{kind}_storage_{field}": value
            for kind in ("offset", "config", "status")
            for field, value in (("topic", f"{topic}-{kind}"), ("replication_factor", 1))
        },
    )
    connector = {
        "name": "lines",
        "config": {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(source),
            "topic": topic,
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        },
    }
    create(broker, topic, 1)
    reader = Reader(broker, topic)
    try:
        with program(tmp_path, "connect", CONNECT, config) as worker:
            until(lambda: rest(port, "/connectors", connector) is not None, "no connector", worker)
            until(lambda: len(reader.values()) >= 50, "lines are missing", worker)
            worker.kill()
        with source.open("a") as more:
            more.write("".join(f"line {number}\n" for number in range(50, 80)))
        with program(tmp_path, "connect2", CONNECT, config) as worker:
            until(lambda: len(reader.values()) >= 80, "lines are missing after a kill", worker)
    finally:
        reader.close()
    assert [value for _, value in reader.records] == [f"line {number}" for number in range(80)]


def test_mirror_maker_2(broker: ServerProcess, topic: str, tmp_path: Path) -> None:
    """From a cluster to itself under another name, which is all that MirrorMaker can tell them apart by."""
    lines = [f"line {number}" for number in range(60)]
    create(broker, topic, 2)
    produce(broker, topic, lines)
    config = properties(
        tmp_path / "mirror.properties",
        clusters="a, b",
        a_bootstrap_servers=broker.bootstrap,
        b_bootstrap_servers=broker.bootstrap,
        a__b_enabled="true",
        a__b_topics=topic,
        a__b_emit_heartbeats_enabled="false",
        b__a_enabled="false",
        b__a_emit_heartbeats_enabled="false",
        replication_factor=1,
        offset_storage_replication_factor=1,
        config_storage_replication_factor=1,
        status_storage_replication_factor=1,
        **{"offset-syncs_topic_replication_factor": 1},
        checkpoints_topic_replication_factor=1,
        b_exactly_once_source_support="enabled",
        dedicated_mode_enable_internal_rest="false",
        listeners=f"http://{HOST}:0",
    )
    reader = Reader(broker, f"a.{topic}")
    try:
        with program(tmp_path, "mirror", "org.apache.kafka.connect.mirror.MirrorMaker", config) as mirror:
            until(lambda: len(reader.values()) >= 60, "records are missing", mirror)
    finally:
        reader.close()
    assert sorted(value for _, value in reader.records) == sorted(lines)
