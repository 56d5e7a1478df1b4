"""`chronik start` as a process: what a person or a service manager sees of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.clients import Confluent, Record
from tests.node import ChronikNode
from tests.process import POLL_S

STOP_SECONDS_MAX = 20.0
"""An idle connection would hold it up for ten minutes. How quick start and stop are: `make bench-short`."""
IDLE_RSS_BYTES_MAX = 120e6


pytestmark = pytest.mark.usefixtures("only_chronik")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ChronikNode]:
    made = ChronikNode(tmp_path / "node")
    yield made
    made.kill()


def refused(node: ChronikNode) -> str:
    """Run a start that must fail; returns the one sentence it says."""
    node.folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        node.command(),
        cwd=node.folder,
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    sentences = [line for line in done.stderr.splitlines() if line.startswith("chronik: ")]
    assert len(sentences) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return sentences[0]


def test_it_says_what_a_newcomer_needs(node: ChronikNode) -> None:
    node.start()
    until = time.monotonic() + 10
    while "Ctrl-C" not in (said := node.log.read_text()) and time.monotonic() < until:
        time.sleep(POLL_S)
    assert node.bootstrap in said
    assert str(node.data_dir) in said
    assert f"chronik produce greetings --bootstrap {node.bootstrap}" in said


def test_a_node_that_just_started_takes_records_and_is_small(node: ChronikNode) -> None:
    node.start()
    assert Confluent(node.bootstrap).produce("first", [Record(b"x")]) == [0]
    assert node.rss_bytes() < IDLE_RSS_BYTES_MAX


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(node: ChronikNode, number: signal.Signals) -> None:
    node.start()
    client = Confluent(node.bootstrap)
    assert client.produce("kept", [Record(b"%d" % n) for n in range(100)]) == list(range(100))
    idle = socket.create_connection(("127.0.0.1", node.kafka_port))  # nobody may hold up the stop
    assert node.stop(number=number) < STOP_SECONDS_MAX
    idle.close()
    node.start()
    assert [record.value for record in client.consume("kept", 100)] == [b"%d" % n for n in range(100)]


def test_after_kill_it_comes_back_with_what_was_acknowledged(node: ChronikNode) -> None:
    node.start()
    client = Confluent(node.bootstrap)
    client.produce("kept", [Record(b"%d" % n) for n in range(1000)])
    node.kill()
    node.start()
    assert [record.value for record in client.consume("kept", 1000)] == [b"%d" % n for n in range(1000)]


def test_a_second_node_on_the_same_data_is_refused_and_the_first_undisturbed(
    node: ChronikNode, tmp_path: Path
) -> None:
    node.start()
    client = Confluent(node.bootstrap)
    client.produce("kept", [Record(b"before")])
    second = ChronikNode(tmp_path / "second", data_dir=node.data_dir)
    assert refused(second).endswith("another node is using this data directory")
    assert client.produce("kept", [Record(b"after")]) == [1]


def test_a_port_in_use_is_one_sentence(node: ChronikNode, tmp_path: Path) -> None:
    node.start()
    sentence = refused(ChronikNode(tmp_path / "second", kafka_port=node.kafka_port))
    assert str(node.kafka_port) in sentence
    assert "--kafka-port" in sentence


def test_a_data_directory_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(ChronikNode(tmp_path / "node", data_dir=tmp_path / "file"))


def test_a_wrong_variable_is_one_sentence(tmp_path: Path) -> None:
    node = ChronikNode(tmp_path / "node", env={"CHRONIK_WAL_PROFILE": "hihg"})
    assert "did you mean high?" in refused(node)


def test_it_advertises_what_it_was_told(tmp_path: Path) -> None:
    env = {"CHRONIK_ADMIN_API_KEY": "swordfish"}
    node = ChronikNode(tmp_path / "node", bind="0.0.0.0", advertise="localhost", env=env)
    with node:
        metadata = Confluent(node.bootstrap).admin.list_topics(timeout=60)
        (broker,) = metadata.brokers.values()
        assert (broker.host, broker.port) == ("localhost", node.kafka_port)


def test_modules_have_log_levels_of_their_own(tmp_path: Path) -> None:
    with ChronikNode(tmp_path / "node", env={"CHRONIK_LOG": "chronik.metadata=debug"}) as node:
        told = node.log.read_text()
    assert "DEBUG   chronik.metadata.telling: Wrote RegisterBroker(1) to metadata WAL at offset " in told
    assert {line.split()[3].split(".")[1] for line in told.splitlines() if " DEBUG " in line} == {"metadata"}
