"""SQL on a real node: the same numbers as a full read, within limits (H05)."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest

from chronik.query.priority import NICENESS
from tests.query.conftest import QueryNode, Refused
from tests.query.load import orders, produce


def test_counts_and_sums_equal_what_was_written(node: QueryNode) -> None:
    node.create("orders", 3)
    values = list(orders(120_000))
    produce(node.bootstrap, "orders", values)
    expected = [[len(values), sum(value["total"] for value in values), 119_999]]
    query = "SELECT count(*), sum(total), max(id) FROM orders"
    assert node.sql(query) == expected
    assert list((node.data_dir / "query" / "sql").rglob("*.parquet"))
    # What is in files by now and what came since are one table.
    produce(node.bootstrap, "orders", orders(1000, 120_000))
    assert node.sql("SELECT count(*), count(DISTINCT id), max(id) FROM orders") == [
        [121_000, 121_000, 120_999]
    ]
    node.stop()
    node.start()
    assert node.sql("SELECT count(*), count(DISTINCT id) FROM orders") == [[121_000, 121_000]]


def test_offsets_and_times_decide_what_is_read(node: QueryNode) -> None:
    node.create("orders")
    produce(node.bootstrap, "orders", orders(5000))
    assert node.sql('SELECT count(*) FROM orders WHERE "offset" >= 4990') == [[10]]
    explained = node.http("POST", "/_sql/explain", {"query": 'SELECT id FROM orders WHERE "offset" >= 4990'})
    assert "10 rows in memory" in explained["plan"]
    assert node.sql("SELECT count(*) FROM orders WHERE timestamp > now() - INTERVAL 1 HOUR") == [[5000]]
    assert node.sql("SELECT count(*) FROM orders WHERE timestamp > now() + INTERVAL 1 HOUR") == [[0]]
    assert node.sql('SELECT "offset", id FROM orders WHERE partition = 0 AND "offset" = 7') == [[7, 7]]


def test_topics_can_be_joined(node: QueryNode) -> None:
    node.create("orders")
    node.create("people-of.note")
    produce(node.bootstrap, "orders", orders(100))
    produce(
        node.bootstrap, "people-of.note", [{"name": "ada", "born": 1815}, {"name": "grace", "born": 1906}]
    )
    query = """
        SELECT p.name, p.born, count(*) FROM orders o JOIN "people-of.note" p ON o.customer = p.name
        GROUP BY ALL ORDER BY 1
    """
    assert node.sql(query) == [["ada", 1815, 25], ["grace", 1906, 25]]


def test_tables_csv_and_arrow(node: QueryNode) -> None:
    import pyarrow as pa

    node.create("orders")
    produce(node.bootstrap, "orders", orders(3))
    (table,) = node.http("GET", "/_sql/tables")["tables"]
    names = {column["name"]: column["type"] for column in table["columns"]}
    assert names["total"] == "DOUBLE"
    assert names["id"] == "BIGINT"
    assert {"topic", "partition", "offset", "timestamp", "key", "value", "headers"} <= names.keys()
    query = 'SELECT "offset", customer FROM orders ORDER BY 1'
    csv = node.http("POST", "/_sql", {"query": query, "format": "csv"})
    assert csv == b"offset,customer\n0,ada\n1,grace\n2,linus\n"
    body = b'{"query": "SELECT customer FROM orders ORDER BY id", "format": "arrow"}'
    with urllib.request.urlopen(urllib.request.Request(node.url + "/_sql", body)) as answer:
        assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
        assert pa.ipc.open_stream(answer.read()).read_all()["customer"].to_pylist() == [
            "ada",
            "grace",
            "linus",
        ]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT * FROM nosuch", "unknown_table"),
        ("DROP TABLE orders", "not_a_select"),
        ("COPY (SELECT 1) TO '/tmp/out.csv'", "not_a_select"),
        ("SELECT * FROM read_text('/etc/passwd')", "invalid_sql"),
        ("SELECT * FROM '/etc/passwd'", "unknown_table"),
        ("SELECT nope FROM orders", "invalid_sql"),
        ("SELECT 1; SELECT 2", "invalid_sql"),
        ("", "invalid_sql"),
    ],
)
def test_what_is_not_allowed_is_refused(node: QueryNode, query: str, code: str) -> None:
    node.create("orders")
    with pytest.raises(Refused) as refused:
        node.sql(query)
    assert refused.value.code == code
    assert 400 <= refused.value.status < 500


def test_a_runaway_query_is_stopped(node: QueryNode) -> None:
    node.create("orders")
    produce(node.bootstrap, "orders", orders(10))
    with pytest.raises(Refused) as refused:
        node.sql("SELECT count(*) FROM range(10000000000) a, range(1000) b", timeout_ms=300)
    assert (refused.value.status, refused.value.code) == (408, "query_timed_out")
    assert len(node.sql("SELECT * FROM orders, range(1000)", limit=7)) == 7
    assert node.sql("SELECT count(*) FROM orders") == [[10]]
    assert produce(node.bootstrap, "orders", orders(10)) == 10


def test_every_thread_of_the_query_process_gives_way_to_the_broker(node: QueryNode) -> None:
    assert node.sql("SELECT count(*) AS n FROM range(1000000) a")
    child = node.child_pid("sql")
    assert child is not None
    niceness = [
        os.getpriority(os.PRIO_PROCESS, int(path.name)) for path in Path(f"/proc/{child}/task").iterdir()
    ]
    assert len(niceness) > 1
    assert set(niceness) == {min(19, os.nice(0) + NICENESS)}


def test_a_greedy_query_gets_no_more_memory_than_it_may(tmp_path_factory: pytest.TempPathFactory) -> None:
    with QueryNode(tmp_path_factory.mktemp("node"), sql_memory_bytes_max=64 * 1024 * 1024) as node:
        assert isinstance(node, QueryNode)
        with pytest.raises(Refused) as refused:
            node.sql(
                "SELECT list(a.range || 'x' || b.range) FROM range(100000) a, range(1000) b",
                timeout_ms=20_000,
            )
        assert refused.value.code in ("out_of_memory", "query_timed_out")
        assert node.sql("SELECT 1") == [[1]]
