"""SQL that is meant to hurt, on a real node: it costs its own answer and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.query.conftest import QueryNode, Refused, wait_for
from tests.query.load import orders, produce

MIB = 1024 * 1024
NODE_GROWTH_MAX = 200 * MIB
HEALTH_SECONDS_MAX = 0.3


def resident(pid: int, name: str = "VmRSS") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


@contextmanager
def unharmed(node: QueryNode) -> Iterator[None]:
    """Meanwhile `/health` answers in time, and the node does not grow."""
    before = resident(node.pid, "VmHWM")
    seconds: list[float] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.05):
            began = time.monotonic()
            node.http("GET", "/health")
            seconds.append(time.monotonic() - began)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()
    assert resident(node.pid, "VmHWM") - before < NODE_GROWTH_MAX
    late = [each for each in seconds if each > HEALTH_SECONDS_MAX]
    assert len(late) <= len(seconds) // 20, late  # this machine has other work, too


def test_a_result_of_any_size_ends_neither_sql_nor_search(node: QueryNode) -> None:
    node.create("orders", searchable=True)
    produce(node.bootstrap, "orders", orders(10))
    assert node.total("orders", {"match_all": {}}) == 10
    with unharmed(node):
        for form in ("json", "csv", "arrow"):
            body = {"query": "SELECT repeat('x', 30000000) FROM range(9)", "format": form}
            try:
                answer = node.http("POST", "/_sql", body)
            except Refused as too_much:  # Arrow's nine rows are one buffer, which may not fit
                assert (form, too_much.code) == ("arrow", "out_of_memory")
            else:
                size = len(answer["rows"]) if form == "json" else len(answer) // 30_000_000
                assert size == 2, "rows of 30 MB in 64 MiB"
            with pytest.raises(Refused) as refused:
                node.sql("SELECT repeat('x', 90000000)", format=form)
            assert refused.value.code in ("result_too_large", "out_of_memory")
    assert node.sql("SELECT count(*) FROM orders") == [[10]]
    assert node.total("orders", {"match_all": {}}) == 10
    assert node.metric("chronik_query_child_restarts_total") == 0
    assert not list((node.data_dir / "query" / "sql" / ".results").iterdir())


def test_a_process_that_hangs_is_replaced_and_the_metrics_say_so(node: QueryNode) -> None:
    import os
    import signal

    assert node.sql("SELECT 1") == [[1]]
    up = 'chronik_query_child_up{process="sql"}'
    assert node.metric(up) == 1
    hanging = node.child_pid("sql")
    assert hanging is not None
    os.kill(hanging, signal.SIGSTOP)
    wait_for("the end of a process that hangs", lambda: node.child_pid("sql") not in (hanging, None))
    assert node.metric('chronik_query_child_restarts_total{process="sql"}') == 1
    assert node.sql("SELECT 1") == [[1]]
    assert node.metric(up) == 1


def test_a_query_that_cannot_be_interrupted_ends_with_its_process(node: QueryNode) -> None:
    """DuckDB looks for an interruption between vectors, not inside of one function's work."""
    node.create("orders", searchable=True)
    produce(node.bootstrap, "orders", orders(10))
    assert node.total("orders", {"match_all": {}}) == 10
    endless = "SELECT levenshtein(repeat('a', 300000), repeat('b', 300000))"
    restarts = 'chronik_query_child_restarts_total{process="sql"}'
    for number in range(3):  # more than there are threads
        with pytest.raises(Refused) as refused:
            node.sql(endless, timeout_ms=2_000)  # long enough to begin on a busy machine
        assert (refused.value.status, refused.value.code) == (408, "query_timed_out")
        assert node.sql("SELECT count(*) FROM orders") == [[10]]
        # Another thread of the old process may have answered that.
        wait_for("the end of its process", lambda n=number: node.metric(restarts) == n + 1)
    assert node.metric('chronik_query_child_restarts_total{process="search"}') == 0
    assert node.total("orders", {"match_all": {}}) == 10


def test_the_memory_limit_holds(tmp_path: Path) -> None:
    """Of what SQL may take, and a stated amount for Python, DuckDB, Arrow and the compiled scanner."""
    with QueryNode(tmp_path / "node", sql_memory_bytes_max=64 * MIB) as node:
        assert isinstance(node, QueryNode)
        node.create("orders")
        produce(node.bootstrap, "orders", ({"id": n, "text": f"{n % 100}" * 1000} for n in range(50_000)))
        with unharmed(node):
            assert node.sql("SELECT count(*) FROM orders") == [[50_000]]
            child = node.child_pid("sql")
            assert child is not None
            for body in (
                {"query": "SELECT * FROM orders", "format": "arrow", "limit": 10},
                {"query": "SELECT * FROM orders", "format": "json"},
                {"query": "SELECT len(range(2000000000))"},
                {"query": "SELECT len(bitstring('1', 400000000)::VARCHAR)"},
                {"query": "SELECT a.text || b.text FROM orders a, orders b", "format": "arrow"},
                {"query": "SELECT list(text) FROM orders", "format": "json"},
                {"query": "SELECT string_agg(text, '') FROM orders, range(1000)", "format": "csv"},
                {
                    "query": "SELECT count(DISTINCT a.text || b.id) FROM orders a, orders b",
                    "timeout_ms": 5000,
                },
            ):
                try:
                    node.http("POST", "/_sql", body)
                except Refused as refused:
                    assert refused.code in (
                        *("out_of_memory", "query_timed_out", "result_too_large", "unavailable"),
                    ), (body, refused)
                if (pid := node.child_pid("sql")) is not None:
                    assert resident(pid, "VmHWM") < (64 + 350) * MIB, body
        assert node.sql("SELECT count(*) FROM orders") == [[50_000]]
