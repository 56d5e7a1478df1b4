"""Apache Kafka's DumpLogSegments as a foreign oracle: it reads our segment files and finds what was sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import java
from tests.apache import ApacheKafka
from tests.compat.clients import Confluent, Record
from tests.node import ChronikNode
from tests.process import ServerProcess

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
SEGMENT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Dumped:
    offset: int
    key: bytes | None
    value: bytes | None
    header_keys: str


@pytest.fixture
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A broker that the test may stop, so that its files are at rest."""
    kind = ApacheKafka if request.config.getoption("--broker") == "kafka" else ChronikNode
    with kind(tmp_path / "broker") as server:
        yield server


def dump(files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    return java.run("kafka.tools.DumpLogSegments", *options, "--files", names).out


def dumped_records(output: str) -> list[Dumped]:
    pattern = re.compile(
        r"^\| offset: (\d+) .*?keySize: (-?\d+) valueSize: (-?\d+) .*?headerKeys: \[(.*?)\]"
        r"(?: key: (.*?))?(?: payload: (.*))?$"
    )
    found = []
    for line in output.splitlines():
        if match := pattern.match(line):
            offset, key_size, value_size, headers, key, value = match.groups()
            found.append(
                Dumped(
                    int(offset),
                    None if key_size == "-1" else (key or "").encode(),
                    None if value_size == "-1" else value.encode(),
                    headers,
                )
            )
    return found


def sample() -> list[Record]:
    filler = "x" * 400
    records = [Record(f"value {n} {filler}".encode(), f"key {n}".encode()) for n in range(400)]
    return [
        *records,
        Record(None, b"tombstone"),
        Record(b"no key"),
        Record(b"h", b"k", (("h1", b"1"), ("h2", b"2"))),
    ]


def test_what_was_produced_is_what_the_dump_tool_reads(own_broker: ServerProcess, topic: str) -> None:
    java.run(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", own_broker.bootstrap, "--create", "--topic", topic),
        *("--config", f"segment.bytes={SEGMENT_BYTES}"),
    )
    client = Confluent(own_broker.bootstrap)
    sent: list[Record] = []
    for _ in range(2):
        for compression in COMPRESSIONS:
            client.produce(topic, sample(), compression)
            sent += sample()
    for _ in range(6):
        client.produce(topic, sample(), "none")
        sent += sample()
    own_broker.stop()

    logs = own_broker.segment_files(topic)
    assert len(logs) >= 2, "the topic should have rolled a segment"
    output = dump(logs, "--print-data-log", "--deep-iteration")
    batches = [line for line in output.splitlines() if line.startswith("baseOffset: ")]
    assert len(batches) >= 16
    assert all("isvalid: true" in line and "magic: 2" in line for line in batches)
    assert {match[1] for line in batches if (match := re.search(r"compresscodec: (\w+)", line))} == set(
        COMPRESSIONS
    )
    assert dumped_records(output) == [
        Dumped(offset, record.key, record.value, ",".join(name for name, _ in record.headers))
        for offset, record in enumerate(sent)
    ]


def test_the_indexes_agree_with_the_log(own_broker: ServerProcess, topic: str) -> None:
    client = Confluent(own_broker.bootstrap)
    for _ in range(20):
        client.produce(topic, sample())
    own_broker.stop()
    for log in own_broker.segment_files(topic):
        offsets = dump([log.with_suffix(".index")])
        assert len(re.findall(r"^offset: \d+ position: \d+", offsets, re.MULTILINE)) >= 10
        times = dump([log.with_suffix(".timeindex")])
        assert re.search(r"^timestamp: \d+ offset: \d+", times, re.MULTILINE)
        for output in (offsets, times):
            assert "ismatch" not in output, output
            assert "non-consecutive" not in output
            assert "out of order" not in output
