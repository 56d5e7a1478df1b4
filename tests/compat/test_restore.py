"""A restore into a node without an object store, and one that is killed and goes on (O04)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from tests.compat.test_tiered_storage import wait_for
from tests.node import SOURCE, ChronikNode

pytestmark = pytest.mark.usefixtures("only_chronik")
TIERING = {"remote.storage.enable": "true", "local.retention.ms": "60000", "segment.bytes": "65536"}
QUIET = {"log_level": 0}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[ChronikNode]:
    with ChronikNode(tmp_path / "source", object_store=(tmp_path / "objects").as_uri()) as node:
        yield node


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ChronikNode]:
    with ChronikNode(tmp_path / "target") as node:
        yield node


def chronik(node: ChronikNode, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "chronik", *map(str, arguments)],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCE),
            "CHRONIK_BOOTSTRAP": node.bootstrap,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(node: ChronikNode, *arguments: str | Path) -> tuple[str, str]:
    process = chronik(node, *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out, err


def produce(node: ChronikNode, topic: str, first: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, **QUIET})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(30) == 0


def end_of(node: ChronikNode, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "end", **QUIET})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
    except confluent_kafka.KafkaException:
        return 0  # not made yet
    finally:
        consumer.close()


def values(node: ChronikNode, topic: str, count: int) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "all", **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [int(message.value()) for message in consumer.consume(count, 30)]
    consumer.close()
    return found


def configs_of(node: ChronikNode, topic: str) -> dict[str, str]:
    (described,) = json.loads(said(node, "topic", "describe", topic, "--json")[0])
    return dict(described["configs"])


def test_a_tiered_topic_comes_back_where_there_is_no_store(
    source: ChronikNode, target: ChronikNode, tmp_path: Path
) -> None:
    flags = [part for name, value in TIERING.items() for part in ("--config", f"{name}={value}")]
    said(source, "topic", "create", "tiered", *flags)
    produce(source, "tiered", 0, 100)
    said(source, "backup", "create", tmp_path / "b")
    said(source, "topic", "export", "tiered", tmp_path / "tiered.zip")

    _, told = said(target, "backup", "restore", tmp_path / "b")
    assert "tiered is made without tiered storage, all its records go to disks" in told
    assert "set object_store on every node" in told
    _, told = said(target, "topic", "import", tmp_path / "tiered.zip", "--as", "copy")
    assert "copy is made without tiered storage" in told
    for topic in ("tiered", "copy"):
        assert values(target, topic, 100) == list(range(100))
        assert configs_of(target, topic) == {"segment.bytes": "65536"}

    _, told = said(source, "topic", "import", tmp_path / "tiered.zip", "--as", "copy")
    assert told == "", "with a store it stays as it was"
    assert configs_of(source, "copy") == TIERING


def test_a_killed_restore_goes_on_where_it_was(
    source: ChronikNode, target: ChronikNode, tmp_path: Path
) -> None:
    """A pipe in the place of the second piece holds the restore exactly there."""
    said(source, "topic", "create", "orders")
    for first in (0, 100):
        produce(source, "orders", first, 100)
        said(source, "backup", "create", tmp_path / "b")
    _, second = sorted((tmp_path / "b").rglob("*.batches"))
    whole = second.read_bytes()
    second.unlink()
    os.mkfifo(second)
    restore = chronik(target, "backup", "restore", tmp_path / "b")
    wait_for(lambda: end_of(target, "orders") == 100, "the first piece is restored")
    restore.send_signal(signal.SIGKILL)
    restore.communicate(timeout=30)
    second.unlink()
    second.write_bytes(whole)

    refused = chronik(target, "backup", "restore", tmp_path / "b")
    assert "pass --continue if an earlier restore was interrupted" in refused.communicate(timeout=60)[1]
    assert refused.returncode == 2
    said(target, "backup", "restore", tmp_path / "b", "--continue")
    assert values(target, "orders", 200) == list(range(200))
    assert end_of(target, "orders") == 200
