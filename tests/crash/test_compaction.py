"""A compacted topic while its node is killed inside compactions, judged by Apache Kafka's dump tool too."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests import java
from tests.node import ChronikNode
from tests.process import POLL_S

TOPIC = "compacted"
DEADLINE_S = 120
SETTINGS = {"cleaner_backoff_ms": 50, "retention_check_interval_ms": 200, "wal_profile": "ultra"}
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": str(1024 * 1024),
    "segment.ms": "300",
    "delete.retention.ms": "500",
}

State = dict[bytes, bytes | None]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ChronikNode]:
    made = ChronikNode(tmp_path / "node", **SETTINGS)
    made.start()
    yield made
    made.kill()


def create(node: ChronikNode, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(60)


def produce(node: ChronikNode, records: Iterator[tuple[bytes, bytes | None]], state: State) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 200_000}
    )
    for key, value in records:
        while True:
            try:
                producer.produce(
                    TOPIC, value, key, on_delivery=lambda error, _: error and failures.append(error)
                )
                break
            except BufferError:
                producer.poll(0.05)
        state[key] = value
    assert producer.flush(DEADLINE_S) == 0
    assert not failures, failures[:3]


def read_all(node: ChronikNode) -> list[tuple[int, bytes, bytes | None]]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[tuple[int, bytes, bytes | None]] = []
    while True:
        for message in consumer.consume(10_000, 0.1):
            error = message.error()
            if error is None:
                found.append((message.offset(), message.key(), message.value()))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                consumer.close()
                return found
            else:
                raise AssertionError(error)


def check(found: list[tuple[int, bytes, bytes | None]], state: State) -> None:
    """Whatever compaction did so far: the last value of each key is there, and offsets go up."""
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    last = {key: value for _, key, value in found}
    assert {key: value for key, value in last.items() if value is not None} == {
        key: value for key, value in state.items() if value is not None
    }


def wait_for(fact: Callable[[], bool], what: str, node: ChronikNode) -> None:
    end = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < end, f"{what} did not happen: {node.log_tail()}"
        time.sleep(10 * POLL_S)


def wait_until_compacting(node: ChronikNode, source: random.Random) -> None:
    """Until compaction has got as far as the files that this round wants to see."""
    folder = node.data_dir / "topics" / f"{TOPIC}-0"
    wanted = source.choice(("*.log.cleaned", "*.log.cleaned", "*.timeindex.cleaned", "*.swap"))
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if any(folder.glob(wanted)):
            return


def settled(node: ChronikNode, expected: State) -> Callable[[], bool]:
    def fact() -> bool:
        found = read_all(node)
        check(found, expected)
        return len(found) == len(expected) and {key: value for _, key, value in found} == expected

    return fact


def dump(files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    return java.run("kafka.tools.DumpLogSegments", *options, "--files", names, timeout_s=120).out


def check_files(node: ChronikNode, keys: int) -> None:
    """The node is at rest: what Apache Kafka's own tool reads in its files."""
    logs = [file for file in node.segment_files(TOPIC) if file.stat().st_size]
    output = dump(logs, "--print-data-log", "--deep-iteration")
    batches = [line for line in output.splitlines() if line.startswith("baseOffset: ")]
    assert batches
    assert all("isvalid: true" in line for line in batches)
    records = [line for line in output.splitlines() if line.startswith("| offset: ")]
    assert len(records) == keys
    for log in logs:
        for suffix in (".index", ".timeindex"):
            told = dump([log.with_suffix(suffix)])
            assert "ismatch" not in told, told
            assert "out of order" not in told, told
            assert "non-consecutive" not in told, told
            assert re.search(r"^(offset|timestamp): \d+", told, re.MULTILINE), told
    left = [file.name for file in logs[0].parent.iterdir()]
    assert not [name for name in left if name.endswith((".cleaned", ".swap", ".drop"))]


def test_the_last_value_of_each_key_survives_kills_inside_compaction(
    node: ChronikNode, request: pytest.FixtureRequest
) -> None:
    updates = request.config.getoption("--compaction-updates")
    rounds = max(request.config.getoption("--crash-rounds") // 2, 1)
    keys = min(10_000, updates // 10)
    source = random.Random(updates)
    create(node, CONFIGS)
    state: State = {}
    for number in range(rounds):
        first = number * updates // rounds
        last = (number + 1) * updates // rounds
        produce(
            node,
            ((b"key-%05d" % source.randrange(keys), b"value %d" % i) for i in range(first, last)),
            state,
        )
        wait_until_compacting(node, source)
        node.kill()
        node.start()
        check(read_all(node), state)

    wait_for(settled(node, state), "compaction to one record per key", node)
    gone = sorted(state)[::7]
    produce(node, ((key, None) for key in gone), state)
    check(read_all(node), state)
    kept = {key: value for key, value in state.items() if value is not None}
    wait_for(settled(node, kept), "the removal of the tombstones", node)
    node.restart()
    assert settled(node, kept)()
    node.stop()
    check_files(node, len(kept))


def test_retention_and_compaction_together(node: ChronikNode) -> None:
    create(node, {**CONFIGS, "cleanup.policy": "compact,delete", "retention.ms": "2000"})
    state: State = {}
    produce(node, ((b"key-%d" % (i % 50), b"value %d" % i) for i in range(5_000)), state)
    check(read_all(node), state)
    wait_for(lambda: read_all(node) == [], "the end of every record", node)
    produce(node, iter([(b"key-1", b"back")]), {})
    assert read_all(node) == [(5_000, b"key-1", b"back")]
