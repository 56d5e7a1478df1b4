"""`chronik cluster` as a person uses it, and the scripts beside it (S27)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic

from chronik.local.layout import HOST
from chronik.testing import free_ports
from tests.cluster import clients

ROOT = Path(__file__).parents[2]
FLAGS = ("--kafka-port", "--wal-port", "--raft-port", "--http-port")


class Tool:
    """The command line, always on the same cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str, code: int | tuple[int, ...] = 0) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CHRONIK_")}
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from chronik.cli import main; main()", "cluster", *arguments),
                *("--data-dir", str(self.folder)),
            ],
            env={**clean, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in (code if isinstance(code, tuple) else (code,)), done.stdout + done.stderr
        return done.stdout + done.stderr

    def status_now(self) -> dict[str, object]:
        """Asked once, whatever the exit code says: it may change from one question to the next."""
        return self.status((0, 1))

    def status(self, code: int | tuple[int, ...] = 0) -> dict[str, object]:
        return dict(json.loads(self("status", "--json", code=code)))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def port_flags() -> list[str]:
    """Four ports with room for the next nodes behind each.

    Those behind the first are not of this process's share, so others may take them: they are looked at here.
    """
    firsts: list[int] = []
    while len(firsts) < len(FLAGS):
        (port,) = free_ports(1)
        if all(abs(port - other) > 10 for other in firsts) and all(map(is_free, range(port, port + 4))):
            firsts.append(port)
    return [part for flag, port in zip(FLAGS, firsts, strict=True) for part in (flag, str(port))]


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Tool]:
    command = Tool(tmp_path / "cluster")
    yield command
    if (command.folder / "cluster.toml").exists():
        command("down", "--force", "--timeout", "10")


@pytest.mark.timeout(180)
def test_a_cluster_from_up_to_down(tool: Tool) -> None:
    flags = port_flags()
    told = json.loads(tool("up", "--nodes", "3", "--json", *flags))
    assert [node["node"] for node in told["nodes"]] == [1, 2, 3]
    assert [node["kafka"].split(":")[1] for node in told["nodes"]] == [
        str(int(flags[1]) + n) for n in range(3)
    ]
    producer = clients.producer(told["bootstrap"])
    clients.send(producer, "orders", b"hello")
    status = tool.status()
    assert status["healthy"] is True
    assert status["controller"] in (1, 2, 3)
    assert status["partitions"] == 1
    table = tool("status")
    assert "ready" in table
    assert "is the controller" in table
    assert "3 nodes ran already" in tool("up")

    tool("kill", "--node", "2")
    status = tool.status(code=1)
    nodes = {node["node"]: node for node in status["nodes"]}  # type: ignore[attr-defined]
    assert nodes[2]["state"] == "stopped"
    assert nodes[1]["state"] == nodes[3]["state"] == "ready"
    assert tool("kill", "--node", "2", code=2) == "chronik: node 2 does not run\n"
    tool("restart", "--node", "2")
    tool("stop", "--node", "3")
    tool("restart", "--node", "3")
    assert "3 nodes stopped" in tool("down")
    assert "no node was running" in tool("down")
    tool("up")
    assert clients.count_records(told["bootstrap"], "orders", 1) == 1
    for number in (1, 2, 3):
        assert (tool.folder / f"node{number}" / "node.log").stat().st_size > 0


@pytest.mark.timeout(180)
def test_a_node_is_added_and_removed(tool: Tool) -> None:
    told = json.loads(tool("up", "--nodes", "3", "--json", *port_flags()))
    admin = clients.admin(told["bootstrap"])
    clients.create(admin, "orders", partitions=6)
    tool("add-node")
    tool("rebalance")
    nodes = {node["node"]: node for node in tool.status()["nodes"]}  # type: ignore[attr-defined]
    assert nodes[4]["state"] == "ready"
    tool("remove-node", "--node", "1")
    nodes = {node["node"]: node for node in tool.status()["nodes"]}  # type: ignore[attr-defined]
    assert sorted(nodes) == [2, 3, 4]
    tool("down")
    tool("up")


def test_mistakes_are_one_sentence(tool: Tool) -> None:
    assert "there is no cluster here" in tool("status", code=2)
    assert "there is no cluster here" in tool("kill", "--node", "1", code=2)
    assert "outside 1 to 65535" in tool("up", "--kafka-port", "70000", code=2)
    assert not tool.folder.exists()


@pytest.mark.timeout(180)
def test_the_scripts(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHON": sys.executable, "CLUSTER_DIR": str(tmp_path / "cluster")}
    here = ROOT / "tests" / "cluster"
    logs = here / "logs"
    flags = port_flags()
    try:
        subprocess.run([here / "start.sh", *flags], env=env, check=True, timeout=90, capture_output=True)
        assert [(logs / f"node{number}.log").exists() for number in (1, 2, 3, 4)] == [True, True, True, False]
    finally:
        subprocess.run([here / "stop.sh"], env=env, check=True, timeout=90, capture_output=True)


@pytest.mark.timeout(120)
def test_a_consumer_reads_from_the_replica_in_its_rack(tool: Tool) -> None:
    """`up --rack`: fetching from the closest replica (KIP-392) on one machine."""
    found = json.loads(tool("up", "--rack", "a,b,c", "--json", *port_flags()))
    assert [node["rack"] for node in found["nodes"]] == ["a", "b", "c"]
    admin = clients.admin(found["bootstrap"])
    admin.create_topics([NewTopic("near", 1, replica_assignment=[[1, 2, 3]])])["near"].result(30)
    producer = clients.producer(found["bootstrap"])
    for _ in range(500):
        producer.produce("near", bytes(10_000))
    assert producer.flush(30) == 0

    def sent() -> dict[int, int]:
        status = {}
        for node in found["nodes"]:
            with urllib.request.urlopen(f"http://{node['http']}/admin/node", timeout=10) as answer:
                status[node["node"]] = json.loads(answer.read())["sent_bytes"]
        return status

    before = sent()
    settings = {"group.id": "near", "auto.offset.reset": "earliest", "client.rack": "b", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": found["bootstrap"], **settings})
    consumer.subscribe(["near"])
    count = 0
    while count < 500:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        count += 1
    consumer.close()
    moved = {node: now - before[node] for node, now in sent().items()}
    assert moved[2] > 5_000_000
    assert moved[1] < 1_000_000
    refused = tool("up", "--rack", "x,y", code=2)
    assert "other racks" in refused
