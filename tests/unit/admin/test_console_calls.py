"""What the console calls to change something: each with its preview, its refusals and the rights it needs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronik.admin.endpoint import HttpEndpoint
from chronik.client import Admin, Cluster, GroupConsumer, Producer, Transaction
from chronik.client.groups import Groups
from chronik.metadata.commands import Endpoint, RegisterBroker, UnregisterBroker
from chronik.metadata.levels import LEVEL_FIRST, LEVEL_LAST, LEVELS
from chronik.metadata.reassignment import is_moving
from chronik.metadata.values import PartitionRegistration
from chronik.model import TopicPartition
from chronik.node import Node
from chronik.wire.api import ApiKey
from tests.segments import flip_bit
from tests.unit.admin.support import Http, with_node
from tests.unit.server.test_otlp import gauge, metrics_data
from tests.wire import WireClient

reassign = importlib.import_module(
    "chronik.admin.routes.reassign"
)  # the package has an endpoint of that name
ORDERS = TopicPartition("orders", 0)


async def make_topic(http: Http, name: str = "orders", partitions: int = 1, records: int = 0) -> None:
    assert (await http.post("/admin/create-topic", {"name": name, "partitions": partitions})).status == 200
    for n in range(records):
        sent = await http.post(f"/admin/topics/{name}/messages", {"value": f"{n}", "partition": 0})
        assert sent.status == 200


@contextlib.contextmanager
def deadline(endpoint: HttpEndpoint, seconds: float) -> Iterator[None]:
    usual = endpoint.deadline_s
    object.__setattr__(endpoint, "deadline_s", seconds)  # it is frozen
    try:
        yield
    finally:
        object.__setattr__(endpoint, "deadline_s", usual)


def test_partitions_are_added_after_a_preview(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await make_topic(http)
        path = "/admin/topics/orders/partitions"
        preview = await http.post(path, {"count": 3, "dry_run": True})
        assert preview.json == {"topic": "orders", "before": 1, "after": 3, "replicas": [[1], [1]]}
        assert (await http.get("/admin/topics/orders")).json["partition_count"] == 1
        assert (await http.post(path, {"count": 3})).json == preview.json
        assert (await http.get("/admin/topics/orders")).json["partition_count"] == 3
        fewer = await http.post(path, {"count": 2})
        assert (fewer.status, fewer.json["code"]) == (400, "invalid_partitions")
        assert (await http.post("/admin/topics/nobody/partitions", {"count": 2})).status == 404

    with_node(tmp_path, work)


def test_a_topic_says_what_may_be_done_with_it(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        key = {"authorization": "Bearer swordfish"}
        made = await http.call("POST", "/admin/keys", {"name": "looks", "read_only": True}, key)
        looks = {"authorization": f"Bearer {made.json['key']}"}
        assert (await http.call("POST", "/admin/create-topic", {"name": "orders"}, key)).status == 200
        mine = (await http.call("GET", "/admin/topics/orders", headers=key)).json["allowed"]
        theirs = (await http.call("GET", "/admin/topics/orders", headers=looks)).json["allowed"]
        assert {"ALTER", "DELETE", "WRITE", "READ"} <= set(mine)
        assert set(theirs) == {"READ", "DESCRIBE", "DESCRIBE_CONFIGS"}
        assert (await http.call("GET", "/admin/topics", headers=key)).json[0]["allowed"] is None
        session = (await http.call("GET", "/session", headers=looks)).json
        assert set(session["allowed"]["cluster"]) == {"DESCRIBE", "DESCRIBE_CONFIGS"}
        assert "WRITE" not in session["allowed"]["transactional_id"]

    with_node(tmp_path, work, admin_api_key="swordfish")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/admin/topics/orders/partitions", {"count": 3}),
        ("POST", "/admin/reassign", {"moves": []}),
        ("POST", "/admin/transactions/abort", {"transactional_id": "billing"}),
        ("POST", "/admin/transactions/abort", {"topic": "orders", "partition": 0, "producer_id": 1}),
        ("POST", "/admin/client-metrics/all", {"metrics": "*"}),
        ("DELETE", "/admin/client-metrics/all", None),
        ("DELETE", "/admin/groups/readers", None),
        ("POST", "/admin/upgrade/finalize", {"level": 2}),
        ("POST", "/_node/abort", None),
    ],
)
def test_who_may_only_look_changes_nothing(
    tmp_path: Path, method: str, path: str, body: dict[str, Any] | None
) -> None:
    async def work(node: Node, http: Http) -> None:
        key = {"authorization": "Bearer swordfish"}
        made = await http.call("POST", "/admin/keys", {"name": "looks", "read_only": True}, key)
        await http.call("POST", "/admin/create-topic", {"name": "orders"}, key)
        looks = {"authorization": f"Bearer {made.json['key']}"}
        assert (await http.call(method, path, body, looks)).status == 403
        assert (await http.call(method, path, body)).status == 401

    with_node(tmp_path, work, admin_api_key="swordfish")


def test_a_plan_on_a_single_node_moves_nothing(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await make_topic(http, partitions=3)
        assert (await http.post("/admin/reassign/plan", {})).json == {"moves": []}
        nobody = await http.post("/admin/reassign/plan", {"drain": [7]})
        assert (nobody.status, nobody.json["code"]) == (404, "no_such_node")
        nowhere = await http.post("/admin/reassign/plan", {"topics": ["orders"], "drain": [1]})
        assert nowhere.status == 400
        assert "only 0 nodes" in nowhere.json["message"]
        assert (await http.post("/admin/reassign/plan", {"topics": ["nobody"]})).status == 404
        moves = [{"topic": "orders", "partition": 0, "replicas": None}, {**_move(9), "partition": 9}]
        begun = (await http.post("/admin/reassign", {"moves": moves})).json
        assert begun["begun"] == 0
        assert len(begun["refused"]) == 2
        assert (await http.get("/admin/reassign")).json == {"moves": []}

    with_node(tmp_path, work)


def test_a_topic_that_is_named_often_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def looked(partition: PartitionRegistration) -> bool:
        nonlocal looks
        looks += 1
        return is_moving(partition)

    async def work(node: Node, http: Http) -> None:
        await make_topic(http, partitions=3)
        monkeypatch.setattr(reassign, "is_moving", looked)
        assert (await http.post("/admin/reassign/plan", {"topics": ["orders"] * 100})).json == {"moves": []}
        assert looks == 3
        twice = await http.post("/admin/reassign", {"moves": [_move(1), _move(1)]})
        assert (twice.status, twice.json["code"]) == (400, "invalid_body")

    with_node(tmp_path, work)


def test_a_plan_that_takes_long_ends_with_its_call_and_one_is_made_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = most = ended = 0

    def endless(*_args: object) -> Iterator[None]:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        try:
            while True:
                yield
        finally:
            running -= 1
            ended += 1

    async def work(node: Node, http: Http) -> None:
        await make_topic(http)
        monkeypatch.setattr(reassign, "plan_moves_steps", endless)
        with deadline(reassign.reassign_plan, 0.2):
            calls = [http.post("/admin/reassign/plan", {}) for _ in range(3)]
            assert [one.status for one in await asyncio.gather(*calls)] == [504] * 3
        assert (running, most) == (0, 1)
        assert ended >= 1

    with_node(tmp_path, work)


def _move(node_id: int) -> dict[str, Any]:
    return {"topic": "orders", "partition": 0, "replicas": [node_id]}


def test_offsets_of_a_group_are_moved_after_a_preview(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await make_topic(http, records=10)
        async with Cluster(f"127.0.0.1:{node.kafka_port}") as cluster:
            await Groups(cluster).commit("readers", {ORDERS: 6})
            await Admin(cluster).delete_records({ORDERS: 2})
        path = "/admin/groups/readers/offsets"
        row = {"topic": "orders", "partition": 0, "before": 6}
        for to, value, after in (
            ("earliest", None, 2),
            ("latest", None, 10),
            ("offset", 4, 4),
            ("offset", 0, 2),
            ("shift", -3, 3),
            ("shift", 99, 10),
            ("time", 4_000_000_000_000, 10),
        ):
            found = await http.post(path, {"to": to, "value": value, "dry_run": True})
            assert found.json["offsets"] == [{**row, "after": after}], (to, value)
        group = (await http.get("/admin/groups/readers")).json
        assert group["partitions"][0]["committed_offset"] == 6
        assert "READ" in group["allowed"]
        chosen = [{"topic": "orders", "partitions": [0]}]
        moved = await http.post(path, {"to": "offset", "value": 5, "topics": chosen})
        assert moved.json["offsets"] == [{**row, "after": 5}]
        group = (await http.get("/admin/groups/readers")).json
        assert group["partitions"][0]["committed_offset"] == 5

        for wrong, status in (
            ({"to": "offset"}, 400),
            ({"to": "offset", "value": -1}, 400),
            ({"to": "nowhere"}, 400),
            ({"to": "time", "value": 2**63}, 400),
            ({"to": "shift", "value": -(2**70)}, 400),
            ({"to": "latest", "topics": [{"topic": "orders"}] * 2}, 400),
            ({"to": "latest", "topics": [{"topic": "nobody"}]}, 404),
            ({"to": "latest", "topics": [{"topic": "orders", "partitions": [7]}]}, 404),
        ):
            assert (await http.post(path, wrong)).status == status, wrong
        fresh = await http.post("/admin/groups/fresh/offsets", {"to": "earliest"})
        assert (fresh.status, fresh.json["code"]) == (409, "nothing_committed")

    with_node(tmp_path, work)


def test_a_group_is_deleted_once_nobody_is_in_it(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await make_topic(http, records=1)
        async with Cluster(f"127.0.0.1:{node.kafka_port}") as cluster:
            await Groups(cluster).commit("readers", {ORDERS: 1})
            async with GroupConsumer(cluster, "busy", ["orders"], start="earliest") as consumer:
                await consumer.poll()
                busy = await http.call("DELETE", "/admin/groups/busy")
                assert (busy.status, busy.json["code"]) == (409, "non_empty_group")
                assert busy.json["message"] == "Group 'busy' has members: stop them first."
        listed = (await http.get("/admin/groups")).json["groups"]
        assert {one["group_id"] for one in listed} == {"busy", "readers"}
        assert all("DELETE" in one["allowed"] for one in listed)
        done = await http.call("DELETE", "/admin/groups/readers")
        assert (done.status, done.json) == (200, {"group_id": "readers"})
        listed = (await http.get("/admin/groups")).json["groups"]
        assert {one["group_id"] for one in listed} == {"busy"}
        gone = await http.call("DELETE", "/admin/groups/readers")
        assert (gone.status, gone.json["code"]) == (404, "group_id_not_found")
        assert gone.json["message"] == "There is no group 'readers'."

    with_node(tmp_path, work)


def test_an_upgrade_is_shown_and_finalized(tmp_path: Path) -> None:
    """As in a cluster that release 0.1 founded: its level is the first."""

    async def work(node: Node, http: Http) -> None:
        state = node.parts.metadata.state
        path = "/admin/upgrade/finalize"
        done = (await http.get("/admin/upgrade")).json
        assert (done["level"], done["can_finalize"]) == (LEVEL_LAST, False)
        assert done["next_step"] == "there is nothing to finalize"
        again = await http.post(path, {"level": LEVEL_LAST})
        assert (again.status, again.json["code"]) == (409, "nothing_to_finalize")

        state.level = LEVEL_FIRST
        found = (await http.get("/admin/upgrade")).json
        assert (found["level"], found["highest"], found["can_finalize"]) == (LEVEL_FIRST, LEVEL_LAST, True)
        release = LEVELS[LEVEL_LAST][0]
        assert found["nodes"] == [{"node_id": 1, "levels": [LEVEL_FIRST, LEVEL_LAST], "release": release}]
        never = await http.post(path, {"level": LEVEL_LAST + 1})
        assert (never.status, never.json["code"]) == (409, "invalid_update_version")

        await node.parts.metadata.submit(
            RegisterBroker(
                broker_id=9,
                incarnation=node.parts.services.new_uuid(),
                endpoints={"kafka": Endpoint(host="127.0.0.1", port=1)},
                fenced=True,
            )
        )
        silent = (await http.get("/admin/upgrade")).json
        assert (silent["highest"], silent["can_finalize"]) == (None, False)
        assert silent["next_step"].startswith("node 9 does not answer")
        assert silent["nodes"][1] == {"node_id": 9, "levels": None, "release": None}
        refused = await http.post(path, {"level": LEVEL_LAST})
        assert (refused.status, refused.json["code"]) == (409, "invalid_update_version")
        assert "Broker 9 cannot be asked what it supports" in refused.json["message"]
        assert state.level == LEVEL_FIRST

        await node.parts.metadata.submit(UnregisterBroker(broker_id=9))
        answer = {"before": LEVEL_FIRST, "level": LEVEL_LAST}
        tried = await http.post(path, {"level": LEVEL_LAST, "dry_run": True})
        assert tried.json == {**answer, "dry_run": True}
        assert state.level == LEVEL_FIRST
        assert (await http.post(path, {"level": LEVEL_LAST})).json == {**answer, "dry_run": False}
        assert state.level == LEVEL_LAST

    with_node(tmp_path, work)


def test_open_transactions_are_listed_and_ended(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await make_topic(http)
        async with Cluster(f"127.0.0.1:{node.kafka_port}") as cluster:
            for name in ("billing", "shipping"):
                transaction = Transaction(cluster, name)
                async with Producer(cluster, transaction=transaction) as producer:
                    await transaction.begin()
                    await (await producer.send("orders", b"open", partition=0))
        found = {one["transactional_id"]: one for one in await listed(http)}
        assert found["billing"]["state"] == "Ongoing"
        assert found["billing"]["partitions"] == ["orders-0"]
        assert found["billing"]["may_abort"]
        done = await http.post("/admin/transactions/abort", {"transactional_id": "billing"})
        assert done.json["message"].startswith("billing is aborted")
        again = await http.post("/admin/transactions/abort", {"transactional_id": "billing"})
        assert (again.status, again.json["code"]) == (409, "not_open")
        nobody = await http.post("/admin/transactions/abort", {"transactional_id": "nobody"})
        assert (nobody.status, nobody.json["code"]) == (404, "not_found")

        producer_id = found["shipping"]["producer_id"]
        producers = (await http.get("/admin/topics/orders/producers?partition=0")).json["producers"]
        hanging = {one["producer_id"]: one["transaction_start_offset"] for one in producers}
        assert hanging[producer_id] == 1
        place = {"topic": "orders", "partition": 0, "producer_id": producer_id}
        ended = await http.post("/admin/transactions/abort", place)
        assert "from offset 1 is aborted" in ended.json["message"]
        assert (await http.post("/admin/transactions/abort", place)).status == 409
        half = await http.post("/admin/transactions/abort", {"topic": "orders"})
        assert half.status == 400

    with_node(tmp_path, work)


async def listed(http: Http) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get("/admin/transactions")).json["transactions"]
    return found


def test_the_doctor_looks_at_cluster_and_machine(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await make_topic(http)
        found = (await http.get("/admin/doctor")).json["findings"]
        checks = {one["check"]: one for one in found}
        assert checks["partitions"]["state"] == "ok"
        assert checks["partitions"]["node_id"] is None
        assert checks["disk"]["node_id"] == 1
        assert all(bool(one["fix"]) == (one["state"] in ("wrong", "warning")) for one in found)
        order = [("wrong", "warning", "unknown", "ok").index(one["state"]) for one in found]
        assert order == sorted(order)
        assert (await http.get("/admin/doctor?stuck_after_s=99")).status == 400

    with_node(tmp_path, work)


def test_what_clients_pushed_last_is_shown(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        empty = (await http.get("/admin/client-metrics")).json
        assert empty == {"subscriptions": [], "clients": [], "left_out": 0, "known": 0, "silent_nodes": {}}
        wanted = {"metrics": "org.apache.kafka.", "interval_ms": 1000, "match": "client_id=app.*"}
        assert (await http.post("/admin/client-metrics/apps", wanted)).json["metrics"] == [
            "org.apache.kafka."
        ]
        bad = await http.post("/admin/client-metrics/apps", {"metrics": "*", "interval_ms": 1})
        assert bad.status == 400
        await _push(node.kafka_port, metrics_data(gauge("org.apache.kafka.producer.rate", 2.5, pid="7")))
        found = (await http.get("/admin/client-metrics")).json
        assert [one["name"] for one in found["subscriptions"]] == ["apps"]
        (client,) = found["clients"]
        (value,) = client["values"]
        assert (client["client_id"], client["node_id"], found["known"]) == ("app-1", 1, 1)
        assert (value["name"], value["value"]) == ("org.apache.kafka.producer.rate", 2.5)
        assert value["attributes"] == [["pid", "7"]]
        assert (client["values_kept"], client["values_dropped"]) == (1, 0)
        held = node.parts.client_state.client_metrics.held_bytes
        assert 0 < held < 4_000
        assert (await http.call("DELETE", "/admin/client-metrics/apps")).status == 200
        assert (await http.call("DELETE", "/admin/client-metrics/apps")).status == 404
        assert (await http.get("/admin/client-metrics")).json["subscriptions"] == []

    with_node(tmp_path, work)


async def _push(port: int, data: bytes) -> None:
    import asyncio

    def work() -> None:
        client = WireClient(port, client_id="app-1")
        asked = client.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": None})
        fields = {
            "client_instance_id": asked.client_instance_id,
            "subscription_id": asked.subscription_id,
            "terminating": False,
            "compression_type": 0,
            "metrics": data,
        }
        assert client.ask(ApiKey.PUSH_TELEMETRY, 0, fields).error_code == 0
        client.close()

    await asyncio.to_thread(work)


def test_segments_are_checked_while_the_node_runs(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        key = {"authorization": "Bearer swordfish"}
        made = await http.call("POST", "/admin/keys", {"name": "looks", "read_only": True}, key)
        looks = {"authorization": f"Bearer {made.json['key']}"}
        body = {"name": "orders", "partitions": 1, "config": {"segment.bytes": 1024}}
        assert (await http.call("POST", "/admin/create-topic", body, key)).status == 200
        for _ in range(5):
            sent = await http.call("POST", "/admin/topics/orders/messages", {"value": "." * 600}, key)
            assert sent.status == 200
        await node.parts.store.checkpoint()
        log = node.parts.replicas.leader(ORDERS).log
        flip_bit(log.segments[1].path, 200)

        (before,) = (await http.call("GET", "/admin/verify", headers=looks)).json["nodes"]
        assert before["report"]["state"] == "never"
        assert (await http.call("POST", "/admin/verify", {}, looks)).status == 403
        assert (await http.call("POST", "/admin/verify", {"node_id": 9}, key)).status == 404
        (begun,) = (await http.call("POST", "/admin/verify", {"node_id": 1}, key)).json["nodes"]
        assert begun["report"]["state"] == "running"
        async with asyncio.timeout(30):
            while begun["report"]["state"] == "running":
                (begun,) = (await http.call("GET", "/admin/verify", headers=looks)).json["nodes"]
        (found,) = begun["report"]["findings"]
        assert (begun["report"]["state"], found["topic"], found["position"]) == ("done", "orders", 0)
        ended = (await http.call("POST", "/admin/verify", {"cancel": True}, key)).json["nodes"]
        assert ended[0]["report"]["state"] == "done"

    with_node(tmp_path, work, admin_api_key="swordfish")
