"""`chronik doctor` beside a real node with real consumers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from tests.node import SOURCE, ChronikNode

pytestmark = pytest.mark.usefixtures("only_chronik")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ChronikNode]:
    made = ChronikNode(tmp_path / "node")
    made.start()
    yield made
    made.kill()


def doctor(node: ChronikNode, *flags: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "chronik", "doctor", "--json", *node.command()[4:], *flags]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.stderr, done.stderr
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)}


def wrong_here(found: dict[str, Any]) -> int:
    """The exit code: 1 only for what is wrong with the machine the test runs on, such as a full disk."""
    wrong = {check for check, one in found.items() if one["state"] == "wrong"}
    assert wrong <= {"disk", "clock", "memory", "open files", "file size"}, found
    return int(bool(wrong))


def test_a_healthy_node(node: ChronikNode) -> None:
    with KafkaProducer(bootstrap_servers=node.bootstrap) as producer:
        producer.send("orders", b"1").get(10)
    code, found = doctor(node)
    assert code == wrong_here(found)
    checks = (f"port {node.kafka_port}", "data directory", "nodes", "partitions", "groups", "transactions")
    assert {check: found[check]["state"] for check in checks} == dict.fromkeys(checks, "ok")


def test_a_group_whose_member_does_not_come_back(node: ChronikNode) -> None:
    options: dict[str, Any] = {
        "bootstrap_servers": node.bootstrap,
        "group_id": "billing",
        "auto_offset_reset": "earliest",
    }
    with KafkaProducer(bootstrap_servers=node.bootstrap) as producer:
        producer.send("orders", b"1").get(10)
    sleeper, second = KafkaConsumer("orders", **options), KafkaConsumer("orders", **options)
    assert next(sleeper).value == b"1"  # it is a member, and never polls again
    joining = threading.Thread(target=second.poll, kwargs={"timeout_ms": 20_000})
    joining.start()
    try:
        # Members see the rebalance begin; the doctor waits for one that has begun, not for its own luck.
        states: list[str] = []
        while "PreparingRebalance" not in states:
            states = [group["state"] for group in listed(node)]
        code, found = doctor(node, "--stuck-after", "0.5")
    finally:
        sleeper.close(autocommit=False)
        joining.join()
        second.close(autocommit=False)
    assert code == wrong_here(found)
    assert found["groups"]["state"] == "warning"
    assert "billing (PreparingRebalance)" in found["groups"]["message"]


def listed(node: ChronikNode) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "chronik", "group", "list", "--json", "-b", node.bootstrap]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, timeout=60, check=True
    )
    groups: list[dict[str, Any]] = json.loads(done.stdout)
    return groups
