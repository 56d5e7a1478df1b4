"""What the log loses, searches lose: totals are those of a consumer that reads from the beginning (H04)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.query.conftest import QueryNode, wait_for
from tests.query.load import delete_before, orders, produce

ALL = {"match_all": {}}
KEYS = 300
COMPACTED = {
    "searchable": True,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.ms": "300",
    "delete.retention.ms": "0",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[QueryNode]:
    settings: dict[str, Any] = {"cleaner_backoff_ms": 50, "retention_check_interval_ms": 200}
    with QueryNode(tmp_path / "node", **settings) as server:
        assert isinstance(server, QueryNode)
        yield server


def total_now(node: QueryNode, topic: str) -> int:
    """Of a search that waits for nothing."""
    answer = node.http("POST", f"/{topic}/_search", {"query": ALL, "size": 0})
    assert answer["_shards"]["failed"] == 0, answer
    return int(answer["hits"]["total"]["value"])


def read_offsets(node: QueryNode, topic: str) -> list[int]:
    """What a consumer reads from the beginning."""
    config = {"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.partition.eof": True}
    consumer = Consumer({**config, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        while (message := consumer.poll(60)) is not None:
            if (error := message.error()) is None:
                found.append(message.offset())
            elif "EOF" in str(error):
                assert consumer.position([TopicPartition(topic, 0)])[0].offset <= end
                return found
        raise AssertionError("the log has no end")
    finally:
        consumer.close()


def write(node: QueryNode, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5})
    for key, value in records:
        producer.produce(topic, value, key=key, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def test_deleted_records_are_not_found_though_nothing_new_comes(node: QueryNode) -> None:
    node.create("orders", searchable=True)
    produce(node.bootstrap, "orders", orders(1000))
    wait_for("the index", lambda: node.metric("chronik_index_documents") == 1000)
    for start in (600, 1000):
        delete_before(node.bootstrap, "orders", start, 1)
        assert total_now(node, "orders") == 1000 - start
        wait_for("the index", lambda start=start: node.metric("chronik_index_documents") == 1000 - start)
        assert total_now(node, "orders") == 1000 - start
        began = time.monotonic()
        assert node.total("orders", ALL) == 1000 - start
        assert time.monotonic() - began < 1.5, "nobody waits for records that are gone"
    produce(node.bootstrap, "orders", orders(5, 1000))
    assert node.total("orders", ALL) == 5


def test_what_retention_deletes_is_not_found(node: QueryNode) -> None:
    node.create("orders", searchable=True, **{"segment.bytes": 16384})
    for start in range(0, 1000, 100):
        produce(node.bootstrap, "orders", orders(100, start))
    wait_for("the index", lambda: node.metric("chronik_index_documents") == 1000)
    node.http("POST", "/admin/topics/orders/config", {"config": {"retention.bytes": 20_000}})
    wait_for("retention", lambda: len(read_offsets(node, "orders")) < 1000)
    left = len(read_offsets(node, "orders"))
    assert 0 < left < 1000
    assert total_now(node, "orders") == left
    wait_for("the index", lambda: node.metric("chronik_index_documents") == left)


def test_totals_of_a_compacted_topic_equal_the_log(node: QueryNode) -> None:
    node.create("state", **COMPACTED)
    written = 0

    def compacted_to(count: int) -> bool:
        return len(read_offsets(node, "state")) == count

    for turn in range(3):
        values = [(b"k%d" % n, b'{"id": %d, "turn": %d}' % (n, turn)) for n in range(KEYS)]
        write(node, "state", values)
        written += KEYS
        wait_for("the index", lambda: node.metric("chronik_index_lag_records") == 0)
    write(node, "state", [(b"k%d" % n, None) for n in range(0, KEYS, 3)])
    left = KEYS - len(range(0, KEYS, 3))
    wait_for("compaction", lambda: compacted_to(left))
    wait_for("the index", lambda: total_now(node, "state") == left)
    wait_for("the count", lambda: node.metric("chronik_index_documents") == left)
    assert node.total("state", {"term": {"turn": 2}}) == left
    assert node.total("state", {"range": {"turn": {"lt": 2}}}) == 0
    hits = node.search("state", ALL, size=KEYS, sort=["_offset"])["hits"]["hits"]
    assert [hit["offset"] for hit in hits] == read_offsets(node, "state")
    assert {hit["_source"]["id"] for hit in hits} == {n for n in range(KEYS) if n % 3}


def test_what_was_compacted_while_nobody_indexed_is_not_found(node: QueryNode) -> None:
    node.create("state", **COMPACTED)
    node.http("POST", "/admin/topics/state/config", {"config": {"min.compaction.lag.ms": 3_600_000}})
    for turn in range(3):
        write(node, "state", ((b"k%d" % n, b'{"turn": %d}' % turn) for n in range(KEYS)))
    wait_for("the index", lambda: node.metric("chronik_index_documents") == 3 * KEYS)
    node.http("POST", "/admin/topics/state/config", {"config": {"searchable": False}})
    node.http("POST", "/admin/topics/state/config", {"config": {"min.compaction.lag.ms": 0}})
    wait_for("compaction", lambda: len(read_offsets(node, "state")) == KEYS)
    node.http("POST", "/admin/topics/state/config", {"config": {"searchable": True}})
    wait_for("the index", lambda: node.metric("chronik_index_documents") == KEYS)
    assert total_now(node, "state") == KEYS
