"""A thousand idle connections and a hundred hostile ones: memory stays bounded, others do not notice."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.compat.clients import Confluent, Record
from tests.node import ChronikNode

IDLE = 1_000
HOSTILE = 100
ANNOUNCED_BYTES = 100 * 1024 * 1024
SENT_BYTES = 1024 * 1024
"""What each hostile client really sends of the frame it announced: it must not cost more than that."""
SLACK_BYTES = 64 * 1024 * 1024
TOPIC = "big"

pytestmark = pytest.mark.usefixtures("only_chronik")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ChronikNode]:
    node = ChronikNode(tmp_path)
    node.start()
    yield node
    node.kill()


def connect(node: ChronikNode) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.kafka_port), timeout=60)


def ask_versions(peer: socket.socket) -> None:
    peer.sendall(encode_request(ApiKey.API_VERSIONS, 0, 1, "idle", {}))
    (size,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
    assert len(peer.recv(size, socket.MSG_WAITALL)) == size


def works(node: ChronikNode, topic: str) -> None:
    client = Confluent(node.bootstrap)
    client.produce(topic, [Record(b"fine")])
    assert client.consume(topic, 1)[0].value == b"fine"


def settled_rss(node: ChronikNode, below: int) -> int:
    """The node's memory, as soon as it is below what it may be; what it is after a minute if it never is."""
    deadline = time.monotonic() + 60
    while (found := node.rss_bytes()) >= below and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_idle_and_half_sent_frames_cost_what_was_sent(node: ChronikNode) -> None:
    works(node, "before")
    before = node.rss_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE):
            ask_versions(stack.enter_context(connect(node)))
        works(node, "beside-idle")
        assert node.rss_bytes() - before < SLACK_BYTES
        for _ in range(HOSTILE):
            peer = stack.enter_context(connect(node))
            peer.sendall(struct.pack(">i", ANNOUNCED_BYTES) + bytes(SENT_BYTES))
        works(node, "beside-hostile")
        assert node.rss_bytes() - before < HOSTILE * 2 * SENT_BYTES + SLACK_BYTES
    limit = before + SLACK_BYTES
    assert settled_rss(node, limit) < limit


def test_answers_that_nobody_reads_do_not_pile_up(node: ChronikNode) -> None:
    client = Confluent(node.bootstrap)
    client.produce(TOPIC, [Record(bytes(900_000)) for _ in range(20)])
    fetch = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "isolation_level": 0,
        "topics": [
            {
                "topic": TOPIC,
                "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50_000_000}],
            }
        ],
    }
    node.stop()
    node.start()  # nothing is in memory now: every answer is read from files
    before = node.rss_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            peer = stack.enter_context(connect(node))
            for number in range(30):
                peer.sendall(encode_request(ApiKey.FETCH, 4, number, "deaf", fetch))
        works(node, "beside-deaf")
        # One answer each is 18 MB; thirty each would be more than 5 GB.
        assert node.rss_bytes() - before < 10 * 2 * 18_000_000 + SLACK_BYTES
