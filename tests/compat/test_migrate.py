"""`chronik migrate`: from an Apache Kafka under load, by MirrorMaker 2, interrupted once; both sides agree.

Guards O06.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import confluent_kafka.admin
import pytest

from chronik.cli.migrate_config import OWN_TOPICS
from chronik.client import Cluster
from chronik.client.features import raise_feature
from tests import java
from tests.apache import SHORT_LIVED, ApacheKafka
from tests.cluster.load import Load
from tests.node import SOURCE
from tests.process import ServerProcess

PARTITIONS = 3
RATE = 300
DEADLINE_S = 120


class Migration:
    """The commands, told of both sides; `prefix` keeps to the topics and groups of this test."""

    def __init__(self, old: ServerProcess, new: ServerProcess, prefix: str, folder: Path) -> None:
        self.old, self.new, self.prefix, self.folder = old, new, prefix, folder
        self._env = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "140"}

    def command(self, name: str, *arguments: str) -> list[str]:
        sides = ["--from", self.old.bootstrap, "-b", self.new.bootstrap]
        return [
            *(sys.executable, "-m", "chronik", "migrate", name, *sides),
            *("--topics", f"{self.prefix}.*", *arguments),
        ]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        kafka = str(java.JARS / "kafka-apps")
        command = self.command("run", "--kafka", kafka, "--log", str(self.folder / "mirror.log"), *arguments)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self._env, text=True, stdout=pipe, stderr=subprocess.STDOUT)

    def run(self, name: str, *arguments: str, code: int | None = 0) -> str:
        done = subprocess.run(
            self.command(name, *arguments), env=self._env, text=True, capture_output=True, timeout=DEADLINE_S
        )
        assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout or done.stderr

    def chronik(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "chronik", *arguments, "-b", self.new.bootstrap]
        return subprocess.run(command, env=self._env, text=True, capture_output=True, check=True).stdout

    def check(self, *arguments: str, code: int | None = 0) -> dict[str, Any]:
        groups = ("--groups", f"{self.prefix}.*")
        return dict(json.loads(self.run("check", *groups, "--json", *arguments, code=code)))

    def _status(self) -> dict[str, dict[str, int]]:
        return {row["topic"]: row for row in json.loads(self.run("status", "--json"))["topics"]}

    def left(self) -> dict[str, int]:
        return {name: row["left"] for name, row in self._status().items()}

    def copied(self, topic: str) -> int:
        row = self._status()[topic]
        return row["offsets"] - row["left"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    settings = {"log.retention.hours": 1_000, "auto.create.topics.enable": "false"}
    server = ApacheKafka(tmp_path_factory.mktemp("old"), **settings)
    server.options = SHORT_LIVED
    with server:
        yield server


def create(broker: ServerProcess, name: str, partitions: int, **configs: str) -> None:
    config = {key.replace("_", "."): value for key, value in configs.items()}
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(name, partitions, 1, config=config)])[name].result(30)


def pay(bootstrap: str, topic: str, *, commit: bool, count: int) -> None:
    """One transaction of `count` records."""
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-payer"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, f"{'paid' if commit else 'aborted'} {number}".encode(), headers={"n": b"1"})
    producer.flush(30)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


class Group:
    """A consumer that reads what it is told to and commits."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "max.poll.interval.ms": 900_000,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([topic])

    def read(self, count: int) -> list[tuple[int, bytes]]:
        """Partition and value of the next records."""
        found: list[tuple[int, bytes]] = []
        end = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} records came"
            for message in self._consumer.consume(min(100, count - len(found)), timeout=1):
                if message.error() is None:
                    found.append((message.partition() or 0, message.value() or b""))
        return found

    def close(self) -> None:
        self._consumer.commit(asynchronous=False)
        self._consumer.close()


def wait(fact: Callable[[], bool], what: str, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not fact():
        assert process.poll() is None, (process.communicate()[0], what)
        assert time.monotonic() < end, what
        time.sleep(0.2)


def test_a_migration_under_load_interrupted_once(
    only_chronik: None, old: ApacheKafka, broker: ServerProcess, topic: str, tmp_path: Path
) -> None:
    orders, prices, payments = f"{topic}-orders", f"{topic}-prices", f"{topic}-payments"
    create(old, orders, PARTITIONS, min_insync_replicas="1", max_message_bytes="2000000")
    create(old, prices, 1, cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    create(old, payments, 1)
    plain = ck.Producer({"bootstrap.servers": old.bootstrap})
    for number in range(300):
        plain.produce(prices, str(number).encode(), key=str(number % 20).encode())
    assert plain.flush(30) == 0
    pay(old.bootstrap, payments, commit=True, count=20)
    pay(old.bootstrap, payments, commit=False, count=20)
    migration = Migration(old, broker, topic, tmp_path)
    assert "in the way" not in migration.run("plan")
    with Load(old.bootstrap, orders, PARTITIONS, rate=RATE) as load:
        load.wait_acked(50)
        reader = Group(old.bootstrap, f"{topic}-billing", orders)
        before = reader.read(100)
        first = migration.start()
        wait(lambda: migration.left().get(payments) == 0, "the first run copies", first)
        first.kill()  # with MirrorMaker, which does not outlive it
        first.communicate()
        known = load.acked
        second = migration.start()
        wait(lambda: migration.copied(orders) > known, "the second run goes on", second)
        before += reader.read(50)
        reader.close()
        second.send_signal(signal.SIGINT)
        assert second.wait(DEADLINE_S) == 130, second.communicate()[0]
    assert not load.failures
    pay(old.bootstrap, payments, commit=True, count=5)
    third = migration.start("--until-copied")
    said, _ = third.communicate(timeout=DEADLINE_S)
    assert third.returncode == 0, said
    assert "everything is copied" in said
    copies_agree_and_groups_go_on(migration, load, before)
    differences_are_found(migration, orders)
    assert "the migration is over" in migration.run("finish", "--yes")
    names = set(
        confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
        .list_topics(timeout=30)
        .topics
    )
    assert names.isdisjoint(OWN_TOPICS)
    described = json.loads(migration.chronik("config", "get", "--topic", prices, "--json"))
    assert any(
        row["name"] == "message.timestamp.type" and row["value"] == "LogAppendTime" for row in described
    )


def copies_agree_and_groups_go_on(migration: Migration, load: Load, before: list[tuple[int, bytes]]) -> None:
    """Also by other readers than the command's own: nothing lost, nothing twice, nothing aborted."""
    report = migration.check("--set-offsets", code=None)
    assert not [topic["findings"] for topic in report["topics"] if topic["findings"]]
    assert {topic["name"].rsplit("-")[-1]: topic["compared"] for topic in report["topics"]} == {
        "orders": load.acked,
        "payments": 25,
        "prices": 20,
    }
    report = migration.check()
    assert report["findings"] == []
    assert report["groups"] == [{"group": f"{migration.prefix}-billing", "read_again": 0, "corrected": {}}]
    reader = Group(migration.new.bootstrap, f"{migration.prefix}-billing", load.topic)
    after = reader.read(load.acked - len(before))
    reader.close()
    seen = sorted((partition, int(value.split()[1])) for partition, value in (*before, *after))
    sent = sorted((partition, number) for partition, one in load.sent.items() for number in one.acks)
    assert seen == sent


def differences_are_found(migration: Migration, topic: str) -> None:
    for bootstrap, value in ((migration.old.bootstrap, b"old"), (migration.new.bootstrap, b"new")):
        producer = ck.Producer({"bootstrap.servers": bootstrap})
        producer.produce(topic, value, partition=0)
        if value == b"old":
            producer.produce(topic, value, partition=1)
        assert producer.flush(30) == 0
    migration.chronik("topic", "alter", topic, "--config", "retention.ms=1000000000")
    found = migration.check("--last", "50", code=1)["findings"]
    findings = " ".join(one for one in found if not one.startswith("group "))
    assert f"{topic}-0: old offset" in findings
    assert f"{topic}-1: 1 records from old offset" in findings
    assert f"{topic}: retention.ms is 3600000000, and 1000000000 on the new side" in findings
    assert f"{topic}-2: " not in findings


def test_share_groups_of_apache_kafka_are_described(only_chronik: None, old: ApacheKafka, topic: str) -> None:
    """The commands of `chronik group` ask the old side too."""

    def group(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "chronik", "group", *arguments, "-b", old.bootstrap]
        env = {**os.environ, "PYTHONPATH": str(SOURCE)}
        return subprocess.run(command, env=env, text=True, capture_output=True, check=False)

    create(old, topic, 1)
    asyncio.run(allow_share_groups(old.bootstrap))
    consumer = ck.ShareConsumer({"bootstrap.servers": old.bootstrap, "group.id": topic, "log_level": 0})
    consumer.subscribe([topic])
    end = time.monotonic() + DEADLINE_S
    while True:
        consumer.poll(0.2)
        described = json.loads(group("describe", topic, "--json").stdout or "[{}]")[0]
        if any(member["partitions"] for member in described.get("members", ())):
            break
        assert time.monotonic() < end, described
    consumer.close()
    assert (described["type"], described["assignor"]) == ("share", "simple")
    assert described["members"][0]["partitions"] == [f"{topic}-0"]
    reset = group("reset-offsets", topic, "--to-earliest", "--topic", topic)
    assert reset.returncode == 2
    assert "is a share group, whose offsets cannot be set" in reset.stderr


async def allow_share_groups(bootstrap: str) -> None:
    async with Cluster(bootstrap) as cluster:
        await raise_feature(cluster, "share.version", 1, validate_only=False)
