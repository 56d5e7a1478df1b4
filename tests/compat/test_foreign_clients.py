"""Clients of other languages: Go (franz-go, sarama, kafka-go), Node (kafkajs), C (kcat)."""

from __future__ import annotations

import json

import pytest

from tests.compat.foreign_programs import go, node, run
from tests.process import ServerProcess


def values(start: int, end: int) -> list[str]:
    return [f"value {number:03}" for number in range(start, end)]


def test_franz_go(broker: ServerProcess, topic: str) -> None:
    assert go("franz-plain", broker.bootstrap, topic) == {
        "values": values(0, 100),
        "end": 100,
        "partitions": 3,
    }


@pytest.mark.parametrize("round_trip", ["franz-classic", "franz-next"])
def test_franz_go_groups(broker: ServerProcess, topic: str, round_trip: str) -> None:
    assert go(round_trip, broker.bootstrap, topic) == {
        "early": values(0, 50),
        "late": values(50, 100),
        "committed": 50,
        "listed": True,
    }


def test_franz_go_transactions(broker: ServerProcess, topic: str) -> None:
    """A topic copied exactly once although the first transaction is aborted."""
    assert go("franz-transactions", broker.bootstrap, topic) == {"values": values(0, 30), "aborted": True}


def test_sarama(broker: ServerProcess, topic: str) -> None:
    assert go("sarama-plain", broker.bootstrap, topic) == {"values": values(0, 50), "by_old": values(0, 50)}


def test_sarama_groups(broker: ServerProcess, topic: str) -> None:
    assert go("sarama-group", broker.bootstrap, topic) == {"early": values(0, 20), "late": values(20, 30)}


def test_sarama_transactions(broker: ServerProcess, topic: str) -> None:
    assert go("sarama-transaction", broker.bootstrap, topic) == {"values": values(0, 10) + values(20, 30)}


def test_kafka_go(broker: ServerProcess, topic: str) -> None:
    assert go("kafka-go", broker.bootstrap, topic) == {"early": values(0, 20), "late": values(20, 30)}


def test_kafkajs(broker: ServerProcess, topic: str) -> None:
    seen = node(broker.bootstrap, topic)
    assert seen.pop("end") == 63  # three transactions of ten and their three markers
    assert seen == {
        "early": values(0, 30),
        "late": values(30, 40) + values(50, 60),
        "committed": 62,
        "listed": True,
        "state": "Empty",
    }


def test_kcat(broker: ServerProcess, topic: str) -> None:
    servers = ("kcat", "-X", "client.id=kcat", "-b", broker.bootstrap)
    sent = values(0, 40)
    for codec, start in (("none", 0), ("gzip", 10), ("snappy", 20), ("lz4", 30)):
        lines = "".join(f"key:{value}\n" for value in sent[start : start + 10])
        run(*servers, "-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, "-H", "kind=test", stdin=lines)
    got = run(*servers, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%k %s %h\n")
    assert got.splitlines() == [f"key {value} kind=test" for value in sent]
    assert run(*servers, "-Q", "-t", f"{topic}:0:-1").split() == [topic, "[0]", "offset", "40"]
    listed = json.loads(run(*servers, "-L", "-J", "-t", topic))
    assert [one["topic"] for one in listed["topics"]] == [topic]
    grouped = run(
        *servers, "-G", f"{topic}-group", "-c", "40", "-q", "-X", "auto.offset.reset=earliest", topic
    )
    assert grouped.splitlines() == sent
