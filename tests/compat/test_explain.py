"""`chronik explain` beside a real node: what the node knows of a record and what Kafka tells, together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.node import SOURCE, ChronikNode

pytestmark = pytest.mark.usefixtures("only_chronik")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ChronikNode]:
    with ChronikNode(tmp_path / "node") as made:
        yield made


def chronik(node: ChronikNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chronik", *arguments],
        env={"PYTHONPATH": str(SOURCE), "CHRONIK_BOOTSTRAP": node.bootstrap, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_record_from_its_producer_to_its_groups(node: ChronikNode) -> None:
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "transactional.id": "billing-1",
            "compression.type": "lz4",
            "linger.ms": 1_000,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    for n in range(3):
        producer.produce("orders", f"value {n} ".encode() * 50, key=b"ada", headers={"from": b"a test"})
    producer.commit_transaction()
    for group, committed in (("ahead", 2), ("behind", 1)):
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition("orders", 0, committed)], asynchronous=False)
        consumer.close()

    done = chronik(node, "explain", "orders", "0", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["record"]["key"] == "ada"
    assert found["record"]["value"].startswith("value 1 value 1")
    assert found["record"]["value_bytes"] == 400
    assert found["record"]["headers"] == [["from", "a test"]]
    batch = found["batch"]
    assert (batch["base_offset"], batch["last_offset"], batch["compression"]) == (0, 2, "lz4")
    assert (batch["transaction"], found["transactional_id"]) == ("committed", "billing-1")
    passed = {one["group"]: one["has_passed"] for one in found["groups"]}
    assert passed == {"ahead": True, "behind": False}

    shown = chronik(node, "explain", "orders", "0", "1")
    assert shown.returncode == 0, shown.stderr
    for words in (
        "orders-0, offset 1",
        "offsets 0 to 2, 3 records",
        "committed, of billing-1",
        "byte 0",
        "; wal/000000000000.wal, byte ",
        "none: nothing of the partition is there (remote.storage.enable)",
        "rdkafka, from 127.0.0.1:",
        "to everybody (high watermark 4, last stable offset 4)",
        "searchable is false",
    ):
        assert words in shown.stdout, shown.stdout
    marker = chronik(node, "explain", "orders", "0", "3")
    assert "a marker that ends a transaction (commit)" in marker.stdout
    beyond = chronik(node, "explain", "orders", "0", "4")
    assert (beyond.returncode, beyond.stdout) == (2, "")
    assert beyond.stderr == ("chronik: Offset 4 of orders-0 has not been written yet: the last one is 3\n"), (
        beyond.stderr
    )
