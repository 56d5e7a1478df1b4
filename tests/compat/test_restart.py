"""What clients find after a broker has started again, and after old records went (T23, T31)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import confluent_kafka.admin
import pytest

from tests.node import ChronikNode

DEADLINE_S = 60


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ChronikNode]:
    with ChronikNode(tmp_path, retention_check_interval_ms=100) as started:
        assert isinstance(started, ChronikNode)
        yield started
        started.stop()


def create(node: ChronikNode, topic: str, **configs: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, 1, 1, config=named)])[topic].result(DEADLINE_S)


def consumer(node: ChronikNode, topic: str, offset: int = ck.OFFSET_STORED) -> ck.Consumer:
    made = ck.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": f"readers of {topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    made.assign([ck.TopicPartition(topic, 0, offset)])
    return made


def take(reader: ck.Consumer, count: int) -> list[bytes]:
    """So many records; whatever goes wrong on the way, an offset out of range above all, is raised."""
    values: list[bytes] = []
    end = time.monotonic() + DEADLINE_S
    while len(values) < count:
        assert time.monotonic() < end, f"only {values} came"
        message = reader.poll(1)
        if message is not None:
            if message.error() is not None:
                raise ck.KafkaException(message.error())
            values.append(message.value() or b"")
    return values


def test_who_reads_what_is_committed_goes_on_after_a_restart(node: ChronikNode) -> None:
    """T31: committed offsets, markers and the last stable offset agree again, also behind aborted records."""
    create(node, "orders")
    writer = ck.Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "writer"})
    writer.init_transactions(DEADLINE_S)
    for number in range(6):
        writer.begin_transaction()
        writer.produce("orders", b"%d" % number)
        if number % 2:
            writer.commit_transaction(DEADLINE_S)
        else:
            assert writer.flush(DEADLINE_S) == 0
            writer.abort_transaction(DEADLINE_S)
    reader = consumer(node, "orders")
    reader.commit(offsets=[ck.TopicPartition("orders", 0, 0)], asynchronous=False)
    assert take(reader, 3) == [b"1", b"3", b"5"]
    # The end of what is committed, which is a marker: there is no record at this offset.
    reader.commit(offsets=reader.position([ck.TopicPartition("orders", 0)]), asynchronous=False)
    reader.close()
    node.kill()
    node.start()
    reader = consumer(node, "orders")
    writer = ck.Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "writer"})
    writer.init_transactions(DEADLINE_S)
    writer.begin_transaction()
    writer.produce("orders", b"after")
    writer.commit_transaction(DEADLINE_S)
    assert take(reader, 1) == [b"after"]
    reader.close()


def test_every_topic_has_its_own_retention(node: ChronikNode) -> None:
    """T23: old segments of any topic go, each by its own settings."""
    short = {"retention_ms": "1", "segment_bytes": "1000", "file_delete_delay_ms": "0"}
    create(node, "short", **short)
    create(node, "other", **short)
    create(node, "kept", retention_ms="-1", segment_bytes="1000")
    writer = ck.Producer({"bootstrap.servers": node.bootstrap, "batch.num.messages": 1})
    for topic in ("short", "other", "kept"):
        for number in range(20):
            writer.produce(topic, b"%0300d" % number)
    assert writer.flush(DEADLINE_S) == 0
    reader = consumer(node, "kept")

    def start_of(topic: str) -> int:
        low, _ = reader.get_watermark_offsets(ck.TopicPartition(topic, 0), DEADLINE_S)
        return int(low)

    end = time.monotonic() + DEADLINE_S
    while not (start_of("short") > 10 and start_of("other") > 10):
        assert time.monotonic() < end, "old segments stay"
        time.sleep(0.1)
    assert start_of("kept") == 0
    reader.close()


def test_records_without_a_timestamp_are_not_taken_for_old_ones(node: ChronikNode) -> None:
    """librdkafka's batches without timestamps claim to be from 1970; their topic keeps them for a week."""
    create(node, "undated")
    create(node, "dated-1970")
    create(node, "old", retention_ms="1", file_delete_delay_ms="0")
    writer = ck.Producer({"bootstrap.servers": node.bootstrap})
    for number in range(10):
        writer.produce("undated", b"%d" % number, timestamp=-1)
        writer.produce("dated-1970", b"%d" % number, timestamp=1 + number)
    assert writer.flush(DEADLINE_S) == 0
    writer.produce("old", b"goes")
    assert writer.flush(DEADLINE_S) == 0
    reader = consumer(node, "undated", 0)

    def start_of(topic: str) -> int:
        low, _ = reader.get_watermark_offsets(ck.TopicPartition(topic, 0), DEADLINE_S)
        return int(low)

    end = time.monotonic() + DEADLINE_S
    for round_ in range(1, 4):  # a record that goes tells that a round of retention is over
        while start_of("old") < round_:
            assert time.monotonic() < end, "old records stay"
            time.sleep(0.1)
        writer.produce("old", b"goes")
        assert writer.flush(DEADLINE_S) == 0
    assert (start_of("undated"), start_of("dated-1970")) == (0, 0)
    assert take(reader, 10) == [b"%d" % number for number in range(10)]
    reader.close()
