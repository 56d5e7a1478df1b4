"""What the endpoints say about a node, asked over a real socket."""

from __future__ import annotations

import asyncio
import importlib
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chronik.admin.endpoint import HttpAccess
from chronik.admin.errors import failure_of
from chronik.admin.routes import ENDPOINTS
from chronik.client import Consumer
from chronik.model import ErrorCode, RequestError, StorageError
from chronik.node import Node
from chronik.server.audit import AuditEntry
from tests.unit.admin.support import Http, with_node


def test_health_and_readiness(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        assert (await http.get("/health")).json["status"] == "ok"
        ready = await http.get("/ready")
        assert (ready.status, ready.json["node_id"]) == (200, node.settings.node_id)

    with_node(tmp_path, work, node_id=7)


def test_raft_status_of_a_single_node(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        before = (await http.get("/admin/raft-status")).json
        assert before["leader_id"] == before["node_id"] == 1
        assert (await http.post("/admin/create-topic", {"name": "a"})).status == 200
        after = (await http.get("/admin/raft-status")).json
        assert after["last_committed_index"] == after["last_applied_index"] > before["last_applied_index"]

    with_node(tmp_path, work)


def test_a_topic_is_created_listed_configured_and_deleted(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        wanted = {"name": "orders", "partitions": 3, "replication_factor": 1, "config": {"searchable": True}}
        created = await http.post("/admin/create-topic", wanted)
        assert created.status == 200
        assert created.json["partitions"] == 3
        assert (await http.post("/admin/create-topic", wanted)).json["code"] == "topic_already_exists"

        (listed,) = (await http.get("/admin/topics")).json
        assert listed["name"] == "orders"
        assert listed["is_searchable"]
        assert listed["durability"].startswith("An acknowledged write is synced to disk")
        assert [one["leader"] for one in listed["partitions"]] == [1, 1, 1]
        assert {**(await http.get("/admin/topics/orders")).json, "allowed": None} == listed

        changed = await http.post("/admin/topics/orders/config", {"config": {"retention.ms": 1000}})
        rows = {row["name"]: row for row in changed.json["configs"]}
        assert rows["retention.ms"]["value"] == "1000"
        assert rows["retention.ms"]["is_set"]
        back = await http.post("/admin/topics/orders/config", {"config": {"retention.ms": None}})
        assert not {row["name"]: row for row in back.json["configs"]}["retention.ms"]["is_set"]

        assert (await http.call("DELETE", "/admin/topics/orders")).json["name"] == "orders"
        assert (await http.get("/admin/topics")).json == []
        assert (await http.call("DELETE", "/admin/topics/orders")).status == 404

    with_node(tmp_path, work)


def test_a_hundred_topics_at_once_are_all_there(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        answers = await asyncio.gather(
            *(http.post("/admin/create-topic", {"name": f"t{n}"}) for n in range(100))
        )
        assert {answer.status for answer in answers} == {200}
        assert len((await http.get("/admin/topics")).json) == 100

    with_node(tmp_path, work)


def test_messages_are_written_and_found_by_offset_time_and_key(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders"})
        for n in range(10):
            body = {"key": f"k{n % 3}", "value": f'{{"n": {n}}}', "headers": {"from": "test"}}
            produced = await http.post("/admin/topics/orders/messages", body)
            assert produced.json == {"topic": "orders", "partition": 0, "offset": n}

        newest = (await http.get("/admin/topics/orders/messages?limit=3")).json["messages"]
        assert [one["offset"] for one in newest] == [9, 8, 7]
        assert newest[0]["json"] == {"n": 9}
        assert newest[0]["headers"] == [["from", "test"]]
        at = (await http.get("/admin/topics/orders/messages?partition=0&offset=4&limit=2")).json
        assert [one["offset"] for one in at["messages"]] == [4, 5]
        assert at["ends"] == {"0": 6}
        keyed = (await http.get("/admin/topics/orders/messages?key=k1")).json["messages"]
        assert [one["offset"] for one in keyed] == [7, 4, 1]
        timed = f"/admin/topics/orders/messages?timestamp={newest[0]['timestamp_ms'] + 1}"
        assert (await http.get(timed)).json["messages"] == []

    with_node(tmp_path, work)


def test_bytes_that_are_no_text_come_as_base64(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        from chronik.client import Cluster, Producer

        async with Cluster(f"127.0.0.1:{node.kafka_port}") as cluster, Producer(cluster) as producer:
            await producer.send("raw", b"\xff\x00", key=b"k")
            await producer.send("raw", None, key=b"k")
        tombstone, binary = (await http.get("/admin/topics/raw/messages")).json["messages"]
        assert (binary["encoding"], binary["value"]) == ("base64", "/wA=")
        assert tombstone["value"] is None

    with_node(tmp_path, work)


def test_groups_show_what_they_committed_and_their_lag(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        from chronik.client import Cluster
        from chronik.client.groups import Groups
        from chronik.model import TopicPartition

        await http.post("/admin/create-topic", {"name": "orders"})
        for n in range(5):
            await http.post("/admin/topics/orders/messages", {"value": str(n)})
        async with Cluster(f"127.0.0.1:{node.kafka_port}") as cluster:
            await Groups(cluster).commit("readers", {TopicPartition("orders", 0): 2})
        (group,) = (await http.get("/admin/groups")).json["groups"]
        assert (group["group_id"], group["lag"]) == ("readers", 3)
        assert group["partitions"][0]["committed_offset"] == 2
        assert (await http.get("/admin/groups/readers")).json == group
        assert (await http.get("/admin/groups/nobody")).status == 404

    with_node(tmp_path, work)


def test_the_cluster_and_its_nodes(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders", "partitions": 2})
        cluster = (await http.get("/admin/cluster")).json
        assert cluster["partition_count"] == cluster["nodes"][0]["leader_count"] == 2
        assert cluster["nodes"][0]["endpoints"]["http"].endswith(f":{node.http_port}")
        (report,) = (await http.get("/admin/nodes")).json["nodes"]
        assert report["reachable"]
        assert report["status"]["resident_bytes"] > 10_000_000

    with_node(tmp_path, work)


def test_a_node_tells_its_status_under_both_names(tmp_path: Path) -> None:
    """Nodes ask each other by the former name."""

    async def work(_: Node, http: Http) -> None:
        told = (await http.get("/admin/status")).json
        assert (told["node_id"], told["is_ready"]) == (1, True)
        assert {one["kind"] for one in told["query_processes"]} == {"search", "sql"}
        assert told["raft"]["last_applied_index"] > 0
        assert (await http.get("/admin/node")).json.keys() == told.keys()

    with_node(tmp_path, work)


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        answer = await http.get("/admin/config")
        rows = {row["name"]: row["value"] for row in answer.json["settings"]}
        assert rows["admin_api_key"] == "(hidden)"
        assert b"swordfish" not in answer.body

    with_node(tmp_path, work, admin_api_key="swordfish")


def test_every_endpoint_is_described(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        described = (await http.get("/openapi.json")).json
        page = (await http.get("/docs")).body.decode()
        for one in ENDPOINTS:
            operation = described["paths"][one.path.replace(":path}", "}")][one.method.lower()]
            assert operation["summary"] == one.summary
            assert (one.access is not HttpAccess.OPEN) == ("security" in operation)
            assert one.path in page

    with_node(tmp_path, work)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, "not_found"),
        ("PUT", "/admin/topics", None, 405, "method_not_allowed"),
        ("POST", "/admin/create-topic", b"{", 400, "malformed_json"),
        ("POST", "/admin/create-topic", b"[" * 100_000, 400, "invalid_body"),
        ("POST", "/admin/create-topic", b"\xff\xfe", 400, "malformed_json"),
        ("POST", "/admin/create-topic", {}, 400, "invalid_body"),
        ("POST", "/admin/create-topic", [], 400, "invalid_body"),
        ("POST", "/admin/create-topic", {"name": 3}, 400, "invalid_body"),
        ("POST", "/admin/create-topic", {"name": "a", "wrong": 1}, 400, "invalid_body"),
        ("POST", "/admin/create-topic", {"name": "a b"}, 400, "invalid_topic_exception"),
        ("POST", "/admin/create-topic", {"name": "a", "partitions": 0}, 400, "invalid_partitions"),
        (
            "POST",
            "/admin/create-topic",
            {"name": "a", "replication_factor": 3},
            400,
            "invalid_replication_factor",
        ),
        ("POST", "/admin/create-topic", {"name": "a", "config": {"x": "y"}}, 400, "invalid_config"),
        ("POST", "/admin/create-topic", b" " * 2_000_000, 413, "body_too_large"),
        ("GET", "/admin/topics/none", None, 404, "unknown_topic_or_partition"),
        ("GET", "/admin/topics/none/messages", None, 404, "unknown_topic_or_partition"),
        ("GET", "/admin/topics/there/messages?limit=0", None, 400, "invalid_query"),
        ("GET", "/admin/topics/there/messages?limit=many", None, 400, "invalid_query"),
        ("GET", "/admin/topics/there/messages?wat=1", None, 400, "invalid_query"),
        ("GET", "/admin/topics/there/messages?offset=3", None, 400, "invalid_query"),
        ("GET", "/admin/topics/there/messages?partition=9", None, 404, "unknown_topic_or_partition"),
        (
            "POST",
            "/admin/topics/there/messages",
            {"value": "x", "partition": 9},
            404,
            "unknown_topic_or_partition",
        ),
        ("GET", "/console/..%2f..%2fnode.py", None, 404, "not_found"),
        ("GET", "/console/__init__.py", None, 404, "not_found"),
        ("GET", "//etc/passwd", None, 404, "not_found"),
        ("POST", "/admin/rebalance", {}, 409, "single_node"),
    ],
)
def test_bad_input_gets_a_code_and_a_sentence(
    tmp_path: Path, method: str, path: str, body: object, status: int, code: str
) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "there"})
        answer = await http.call(method, path, body)
        assert (answer.status, answer.json["code"]) == (status, code)
        assert answer.json["message"].endswith(".")
        assert (await http.get("/health")).status == 200

    with_node(tmp_path, work)


def test_log_levels_are_changed_live(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(node: Node, http: Http) -> None:
        quiet = {"default": "info", "modules": {}}
        assert (await http.get("/admin/log")).json == quiet
        told = await http.post("/admin/log", {"log": "chronik.metadata=debug,chronik.raft=warning"})
        assert told.json["modules"] == {"chronik.metadata": "debug", "chronik.raft": "warning"}
        assert logging.getLogger("chronik.metadata.store").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("chronik.raft.core").isEnabledFor(logging.INFO)
        wrong = await http.post("/admin/log", {"log": "chronik.metadta=debug"})
        assert (wrong.status, wrong.json["code"]) == (400, "invalid_body")
        assert "did you mean chronik.metadata" in wrong.json["message"]
        assert (await http.post("/admin/log", {"log": ""})).json == quiet
        assert not logging.getLogger("chronik.metadata.store").isEnabledFor(logging.DEBUG)

    caplog.set_level("INFO")
    with_node(tmp_path, work)


def test_every_number_that_comes_by_http_has_bounds() -> None:
    """Python's have none, and what encodes them for Kafka or the query process raises beyond 64 bits."""
    given = [part for one in ENDPOINTS for part in (one.query, one.body) if part is not None]
    seen: set[type] = {AuditEntry}  # from another node, and written as JSON again
    unbounded = [found for part in given for found in _unbounded(msgspec.inspect.type_info(part), "", seen)]
    assert unbounded == []


def _unbounded(part: Any, place: str, seen: set[type]) -> list[str]:
    match part:
        case msgspec.inspect.IntType():
            return [place] if part.ge is None or part.le is None else []
        case msgspec.inspect.StructType():
            if part.cls in seen:
                return []
            seen.add(part.cls)
            within = [(f"{part.cls.__name__}.{one.name}", one.type) for one in part.fields]
        case msgspec.inspect.UnionType():
            within = [(place, one) for one in part.types]
        case msgspec.inspect.TupleType():
            within = [(place, one) for one in part.item_types]
        case msgspec.inspect.DictType():
            within = [(place, part.key_type), (place, part.value_type)]
        case _:
            within = [(place, part.item_type)] if hasattr(part, "item_type") else []
    return [found for name, one in within for found in _unbounded(one, name, seen)]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**70])
def test_numbers_beyond_64_bits_are_refused(tmp_path: Path, number: int) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders"})
        for field in ("timestamp", "offset", "partition", "limit"):
            refused = await http.get(f"/admin/topics/orders/messages?{field}={number}")
            assert (refused.status, refused.json["code"]) == (400, "invalid_query"), field
        written = await http.post("/admin/topics/orders/messages", {"value": "", "partition": number})
        assert (written.status, written.json["code"]) == (400, "invalid_body")

    with_node(tmp_path, work)


def test_records_that_cannot_be_read_do_not_hold_the_place_of_other_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("chronik.admin.routes.messages")

    class Stalled(Consumer):
        async def records(self, until: Any = None) -> Any:
            await asyncio.Event().wait()
            yield None

    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders"})
        await http.post("/admin/topics/orders/messages", {"value": "a"})
        with monkeypatch.context() as patched:
            for name, value in (("Consumer", Stalled), ("SCAN_SECONDS", 0.1), ("SLACK_SECONDS", 0.1)):
                patched.setattr(module, name, value)
            calls = [http.get("/admin/topics/orders/messages") for _ in range(4)]
            found = await asyncio.gather(*calls)
        assert [(one.status, one.json["code"]) for one in found] == [(503, "unavailable")] * 4
        assert len((await http.get("/admin/topics/orders/messages")).json["messages"]) == 1

    with_node(tmp_path, work)


def test_a_disk_that_cannot_be_read_is_no_error_of_the_node() -> None:
    """A client may ask for a damaged record again and again: that is no traceback each time."""
    status, failure = failure_of(RequestError(ErrorCode.kafka_storage_error))
    assert (status, failure.code) == (503, "kafka_storage_error")
    assert failure_of(StorageError("the disk of orders-0 failed"))[0] == 503
