"""Search on a real node: what is written is found, and what goes wrong there stays there (H04)."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.query.conftest import QueryNode, Refused, wait_for
from tests.query.load import orders, produce
from tests.small_disk import mount, unmount

ALL = {"match_all": {}}


def test_no_process_is_paid_for_until_it_is_needed(node: QueryNode) -> None:
    node.create("plain")
    produce(node.bootstrap, "plain", orders(100))
    assert node.child_pid() is None
    assert node.metric("chronik_query_child_up") == 0
    node.create("orders", searchable=True)
    wait_for("the query process", node.child_pid)


def test_totals_equal_a_scan(node: QueryNode) -> None:
    node.create("orders", 3, searchable=True)
    values = list(orders(20_000))
    assert produce(node.bootstrap, "orders", values) == 20_000
    assert node.total("orders", ALL) == 20_000
    ada = sum(value["customer"] == "ada" and value["total"] > 200 for value in values)
    assert node.total("orders", {"query_string": {"query": "customer:ada AND total:>200"}}) == ada
    phrase = sum("express delivery" in value["note"] for value in values)
    assert node.total("orders", {"match_phrase": {"note": "express delivery"}}) == phrase
    newest = node.search("orders", ALL, sort=[{"@timestamp": "desc"}], size=3)["hits"]["hits"]
    (last,) = node.search("orders", {"term": {"id": 19_999}})["hits"]["hits"]
    assert newest[0]["timestamp_ms"] == last["timestamp_ms"]  # many share a millisecond
    sorted_ids = {"range": {"id": {"lt": 50}}}
    by_field = node.search("orders", sorted_ids, sort=[{"id": "desc"}], size=5)
    assert [hit["_source"]["id"] for hit in by_field["hits"]["hits"]] == [49, 48, 47, 46, 45]


def test_a_record_is_found_as_soon_as_it_is_committed(node: QueryNode) -> None:
    node.create("orders", 3, searchable=True)
    wait_for("the index", lambda: node.search("orders", ALL)["_shards"]["failed"] == 0)
    at_once = 0
    for n in range(20):
        produce(node.bootstrap, "orders", [{"id": n, "note": f"needle{n} in hay"}])
        for query, total in ((ALL, n + 1), ({"match": {"note": f"needle{n}"}}, 1), ({"term": {"id": n}}, 1)):
            answer = node.http("POST", "/orders/_search", {"query": query})
            if answer["lag"] == 0:
                at_once += 1
                assert answer["hits"]["total"] == {"value": total, "relation": "eq"}
                assert len(answer["hits"]["hits"]) == min(total, 10)
    assert at_once > 30, "of 60; the others waited too long for the reader, on a machine with other work"


def test_many_are_found_as_soon_as_they_are_committed(node: QueryNode) -> None:
    """Long before the index has them."""
    node.create("orders", 3, searchable=True)
    wait_for("the index", lambda: node.search("orders", ALL)["_shards"]["failed"] == 0)
    values = list(orders(100_000))
    assert produce(node.bootstrap, "orders", values) == 100_000
    ids = {"terms": {"id": [0, 77_777, 99_999]}}
    newest = {"query": ALL, "size": 3, "sort": [{"@timestamp": "desc"}]}

    def is_indexed() -> bool:
        is_behind = node.metric("chronik_index_lag_records") > 0
        for body, total in (({"query": ALL, "size": 0}, 100_000), ({"query": ids}, 3), (newest, 100_000)):
            answer = node.http("POST", "/orders/_search", body)
            assert answer["hits"]["total"]["value"] == total or answer["lag"] > 0
        customers = node.http("POST", "/orders/_search", {"query": {"term": {"customer": "ada"}}, "size": 0})
        assert customers["hits"]["total"]["value"] <= 25_000
        assert customers["lag"] > 0 or customers["hits"]["total"]["value"] == 25_000
        return not is_behind

    wait_for("the index", is_indexed)
    assert node.total("orders", {"term": {"customer": "ada"}}) == 25_000


def test_what_a_transaction_aborted_is_never_found(node: QueryNode) -> None:
    node.create("orders", searchable=True)
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    for number, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        for n in range(3):
            producer.produce("orders", b'{"id": %d}' % (10 * number + n))
        producer.flush(60)
        if is_kept:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        kept = 3 * (number + 1 - (number > 0))
        assert node.total("orders", ALL) == kept
        assert node.total("orders", {"range": {"id": {"gte": 10, "lt": 20}}}) == 0
    wait_for("the index", lambda: node.metric("chronik_index_documents") == 6)
    assert node.total("orders", ALL) == 6


def test_it_resumes_after_a_restart(node: QueryNode) -> None:
    node.create("orders", searchable=True)
    produce(node.bootstrap, "orders", orders(500))
    assert node.total("orders", ALL) == 500
    node.stop()
    node.start()
    produce(node.bootstrap, "orders", orders(500, 500))
    assert node.total("orders", ALL) == 1000
    ids = node.search("orders", {"terms": {"id": [499, 500]}}, sort=["id"])["hits"]["hits"]
    assert [hit["_source"]["id"] for hit in ids] == [499, 500]


def test_what_is_searchable_can_be_changed(node: QueryNode) -> None:
    node.create("orders")
    produce(node.bootstrap, "orders", orders(50))
    with pytest.raises(Refused) as refused:
        node.search("orders", ALL)
    assert refused.value.code == "not_searchable"
    node.http("POST", "/admin/topics/orders/config", {"config": {"searchable": True}})
    wait_for("the index", lambda: node.search("orders", ALL)["_shards"]["failed"] == 0)
    assert node.total("orders", ALL) == 50
    node.http("DELETE", "/admin/topics/orders")
    node.create("orders", searchable=True)
    produce(node.bootstrap, "orders", orders(3))
    wait_for("the new index", lambda: node.search("orders", ALL)["_shards"]["failed"] == 0)
    assert node.total("orders", ALL) == 3


def test_produce_does_not_notice_a_dying_query_process(node: QueryNode) -> None:
    node.create("orders", searchable=True)
    wait_for("the query process", node.child_pid)
    stop = threading.Event()
    killed = 0

    def kill() -> None:
        nonlocal killed
        while not stop.is_set():
            if (pid := node.child_pid()) is not None:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            stop.wait(0.1)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert produce(node.bootstrap, "orders", orders(30_000)) == 30_000
    finally:
        stop.set()
        killer.join()
    assert killed
    wait_for("all records", lambda: node.search("orders", ALL)["hits"]["total"]["value"] == 30_000)
    assert node.total("orders", ALL) == 30_000


def index_directory(node: QueryNode, topic: str) -> Path:
    (found,) = (node.data_dir / "query" / "index").glob(f"{topic}.*")
    return found


def test_a_locked_index_stops_nobody(node: QueryNode) -> None:
    node.create("orders", searchable=True)
    produce(node.bootstrap, "orders", orders(10))
    assert node.total("orders", ALL) == 10
    node.stop()
    with (index_directory(node, "orders") / ".tantivy-writer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        node.start()
        assert produce(node.bootstrap, "orders", orders(100, 10)) == 100
        wait_for("the complaint", lambda: "indexing pauses" in node.log_tail())
    wait_for("all records", lambda: node.search("orders", ALL)["hits"]["total"]["value"] == 110)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A place for the query process's files that takes a few megabytes and no more."""
    place = tmp_path / "small"
    mount(place, 6 << 20)
    yield place
    unmount(place)


def test_a_full_index_disk_stops_nobody(node: QueryNode, small_disk: Path) -> None:
    node.stop()
    (node.data_dir / "query").mkdir()
    (node.data_dir / "query" / "index").symlink_to(small_disk)
    node.start()
    filler = small_disk / "filler"
    filler.write_bytes(bytes(5 << 20))
    node.create("orders", searchable=True)
    assert produce(node.bootstrap, "orders", orders(60_000)) == 60_000
    wait_for("the complaint", lambda: "chronik.query.indexer" in node.log_tail())
    assert produce(node.bootstrap, "orders", orders(1000, 60_000)) == 1000
    total = node.search("orders", ALL, size=0)["hits"]["total"]
    assert total["relation"] == "gte" or total["value"] == 61_000
    small_disk_again = subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=False)
    assert small_disk_again.returncode == 0
    wait_for("all records", lambda: node.search("orders", ALL)["hits"]["total"]["value"] == 61_000)


@pytest.mark.parametrize("running", [True, False])
def test_a_damaged_index_is_built_again_and_never_wrong(node: QueryNode, running: bool) -> None:
    node.create("orders", searchable=True)
    produce(node.bootstrap, "orders", orders(2000))
    wait_for("the index", lambda: node.metric("chronik_index_documents") == 2000)
    if not running:
        node.stop()
    for path in index_directory(node, "orders").iterdir():
        if path.suffix in (".store", ".idx", ".term", ".fast"):
            data = bytearray(path.read_bytes())
            for place in range(0, len(data) - 100, 37):
                data[place] ^= 0x55
            with path.open("r+b") as file:
                file.write(data)
    if not running:
        node.start()
    deadline = time.monotonic() + 60
    while True:
        answer = node.search("orders", {"range": {"id": {"lt": 1000}}}, size=0)
        if answer["_shards"]["failed"] == 0:
            assert answer["hits"]["total"] == {"value": 1000, "relation": "eq"}
            break
        assert answer["hits"]["total"]["relation"] == "gte"
        assert time.monotonic() < deadline
    assert "is damaged" in node.log_tail()


def test_bad_searches_are_refused(node: QueryNode) -> None:
    node.create("orders", searchable=True)
    for body, code in (
        ({"query": {"nope": {}}}, "invalid_query"),
        ({"size": 100_000}, "invalid_query"),
        ({"query": "text"}, "invalid_body"),
        ({"what": 1}, "invalid_body"),
    ):
        wait_for("the index", lambda: node.search("orders", ALL)["_shards"]["failed"] == 0)
        with pytest.raises(Refused) as refused:
            node.http("POST", "/orders/_search", body)
        assert (refused.value.status, refused.value.code) == (400, code)
    with pytest.raises(Refused) as refused:
        node.http("POST", "/nothing/_search", {})
    assert refused.value.status == 404


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    with QueryNode(tmp_path / "off", disable_realtime_index=True) as node:
        assert isinstance(node, QueryNode)
        node.create("orders", searchable=True)
        produce(node.bootstrap, "orders", orders(10))
        with pytest.raises(Refused) as refused:
            node.search("orders", ALL)
        assert refused.value.code == "index_disabled"
        assert node.child_pid() is None
        assert node.sql("SELECT count(*) FROM orders") == [[10]]
