"""The topics in which coordinators remember are compacted while their node is killed, and forget nothing."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import confluent_kafka as ck
import confluent_kafka.admin
import pytest

from tests.configs import set_configs
from tests.node import ChronikNode
from tests.process import HOST

GROUPS = 3
INTERNAL = ("__consumer_offsets", "__transaction_state")
DEADLINE_S = 60


def removed(node: ChronikNode) -> float:
    """Records that compaction took out since the node started."""
    with urllib.request.urlopen(f"http://{HOST}:{node.settings['http_port']}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    name = "chronik_cleaner_removed_records_total "
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def group(node: ChronikNode, number: int) -> ck.Consumer:
    return ck.Consumer({"bootstrap.servers": node.bootstrap, "group.id": f"group-{number}"})


def transactional(node: ChronikNode) -> ck.Producer:
    made = ck.Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "tx"})
    made.init_transactions(DEADLINE_S)
    return made


def work_until_compacted(node: ChronikNode, offset: int, written: list[bytes]) -> int:
    """Commit, in groups and in transactions, until enough of that has been compacted away."""
    consumers = [group(node, number) for number in range(GROUPS)]
    producer = transactional(node)
    end = time.monotonic() + DEADLINE_S
    while removed(node) < 100:
        assert time.monotonic() < end, f"nothing is compacted: {node.log_tail()}"
        for _ in range(20):
            offset += 1
            for consumer in consumers:
                consumer.commit(offsets=[ck.TopicPartition("t", 0, offset)], asynchronous=False)
        for _ in range(3):
            producer.begin_transaction()
            value = b"%d" % len(written)
            producer.produce("t", value)
            producer.commit_transaction(DEADLINE_S)
            written.append(value)
    return offset


def committed_values(node: ChronikNode) -> list[bytes]:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ck.TopicPartition("t", 0, ck.OFFSET_BEGINNING)])
    found: list[bytes] = []
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        if message.error() is not None:
            consumer.close()
            return found
        found.append(message.value() or b"")


def test_coordinators_forget_nothing_that_compaction_went_over(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = 1 + int(request.config.getoption("--crash-rounds")) // 5
    settings = {"offsets_topic_partitions": 1, "transactions_topic_partitions": 1, "cleaner_backoff_ms": 50}
    with ChronikNode(tmp_path / "node", **settings) as node:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([confluent_kafka.admin.NewTopic("t", 1, 1)])["t"].result(DEADLINE_S)
        transactional(node)
        group(node, 0).committed([ck.TopicPartition("t", 0)], timeout=DEADLINE_S)
        for topic in INTERNAL:
            configs = {"segment.bytes": "4096", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
            set_configs(node.bootstrap, "topic", topic, configs)
        offset, written = 0, []
        for _ in range(rounds):
            offset = work_until_compacted(node, offset, written)
            node.kill()
            node.start()
            for number in range(GROUPS):
                (found,) = group(node, number).committed([ck.TopicPartition("t", 0)], timeout=DEADLINE_S)
                assert found.offset == offset
            assert committed_values(node) == written
        node.stop()
