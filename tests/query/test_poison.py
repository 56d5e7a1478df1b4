"""A bad record costs that record alone: in search, in SQL, in its own topic and in others (R03)."""

from __future__ import annotations

import asyncio
from typing import Any

from chronik.client import ClientOptions, Cluster, Producer
from chronik.client.options import BrokerAddress
from chronik.model import TopicPartition
from chronik.records.batch import BatchHeader, read_header, reseal
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from tests.query.conftest import QueryNode, Refused, wait_for
from tests.query.load import orders, produce
from tests.unit.records.bombs import bomb, nonsense

ALL = {"match_all": {}}
DEEP = b'{"id":' * 500 + b"1" + b"}" * 500
STRANGE: list[Any] = [
    DEEP,
    b'{"\\ud800": 1, "id": 7}',
    b'{"id": 170141183460469231731687303715884105727}',
    b'{"id": 1e999}',
    b'{"": {"": [[[]]]}, "a\\u0000b": 1}',
    b"\xff\xfe not text",
    b"[" * 100_000,
    b"",
]


def send(node: QueryNode, topic: str, batches: list[bytearray | bytes]) -> None:
    async def work() -> None:
        host, port = node.bootstrap.split(":")
        known = Cluster([BrokerAddress(host, int(port))], ClientOptions())
        async with known as cluster, Producer(cluster) as producer:
            for batch in batches:
                await (await producer.send_batch(TopicPartition(topic, 0), batch))

    asyncio.run(work())


def header_of(name: bytes) -> bytearray:
    """A record whose header has this name, which need not be text."""
    batch = build_batch([Record(key=b"k", value=b'{"id": 5}', headers=(("x" * len(name), b"v"),))])
    at = batch.index(b"x" * len(name))
    batch[at : at + len(name)] = name
    reseal(batch, 0, len(batch))
    return batch


def test_bad_batches_are_left_out_and_nothing_else(node: QueryNode) -> None:
    for name in ("bad", "good"):
        node.create(name, searchable=True)
    good = build_batch([Record(key=b"k", value=b'{"id": 1}'), Record(key=b"k", value=b'{"id": 2}')])
    send(node, "bad", [good, nonsense(record_count=3), good, bomb(), good, header_of(b"\xff\xfe"), good])
    produce(node.bootstrap, "good", orders(1000))
    wait_for("the index of the other topic", lambda: node.total("good", ALL) == 1000)
    wait_for("what can be read", lambda: node.total("bad", {"term": {"id": 2}}) == 4)
    assert node.sql("SELECT count(*), sum(id) FROM bad WHERE id < 3") == [[8, 12]]
    assert node.sql("SELECT count(*) FROM good") == [[1000]]
    wait_for("the count", lambda: node.metric('chronik_query_skipped_records_total{process="search"}') >= 4)
    wait_for("the count", lambda: node.metric('chronik_query_skipped_records_total{process="sql"}') >= 3)
    for form in ("json", "csv", "arrow"):
        node.http("POST", "/_sql", {"query": "SELECT * FROM bad", "format": form})
    assert node.metric("chronik_query_child_restarts_total") == 0
    wait_for("no lag", lambda: node.metric("chronik_index_lag_records") == 0)


def test_strange_values_can_be_searched_queried_and_shown(node: QueryNode) -> None:
    node.create("strange", searchable=True)
    produce(node.bootstrap, "strange", [*STRANGE, *orders(10, 100)])
    assert node.total("strange", ALL) == len(STRANGE) + 10
    hits = node.search("strange", ALL, size=100)["hits"]["hits"]
    assert len(hits) == len(STRANGE) + 10
    assert node.total("strange", {"range": {"id": {"gte": 100, "lt": 110}}}) == 10
    assert node.sql("SELECT count(*), count(*) FILTER (TRY_CAST(id AS INT) < 1000) FROM strange") == [
        [len(STRANGE) + 10, 10]
    ]
    shown = node.sql('SELECT "offset", value FROM strange ORDER BY 1')
    assert [row[1] for row in shown[:2]] == [DEEP.decode(), STRANGE[1].decode()]
    for form in ("json", "csv", "arrow"):
        node.http("POST", "/_sql", {"query": "SELECT * FROM strange", "format": form})
    try:
        node.sql("SELECT json_structure(value) FROM strange")
        raise AssertionError("DuckDB can do it now: try something else that it cannot")
    except Refused as refused:
        assert "Stack" not in str(refused)
        assert "/" not in str(refused.args[0])
    assert node.sql("SELECT count(*) FROM strange") == [[len(STRANGE) + 10]]


def test_offsets_and_times_that_a_batch_makes_up(node: QueryNode) -> None:
    node.create("liar", searchable=True)
    times = [2**63 - 1, -(2**63), 2**62, -5, 0]
    batches = [build_batch([Record(key=None, value=b'{"id": 3}', timestamp_ms=at)]) for at in times]
    accepted = 0
    for batch in batches:
        header: BatchHeader = read_header(batch)
        assert header.record_count == 1
        try:
            send(node, "liar", [batch])
            accepted += 1
        except Exception:
            continue  # refused by the broker: as good
    produce(node.bootstrap, "liar", orders(5))
    assert node.total("liar", ALL) == accepted + 5
    assert node.sql("SELECT count(*) FROM liar") == [[accepted + 5]]
    try:
        node.sql("SELECT * FROM liar")
    except Refused as refused:
        assert refused.status == 400
