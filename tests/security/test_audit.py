"""The audit log: refusals and changes by Kafka and by HTTP, read with the right, written by nodes (X06)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from chronik.admin.audit_writer import AuditWriter
from chronik.client import Admin, ClientOptions, Cluster, Consumer, Producer
from chronik.client.admin import NewTopic
from chronik.client.login import Login
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.client.options import BrokerAddress
from chronik.metadata.commands import AddAcls
from chronik.model import AUDIT_TOPIC, ErrorCode, RequestError, TopicPartition
from chronik.node import Node
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.server.audit import CALLER_DENIALS_MAX, ENTRIES_MAX, MORE
from tests.security.test_http_rights import TOPIC, basic, prepare
from tests.unit.admin.support import HOST, Http, with_node

FIELDS = ("principal", "door", "action", "resource", "allowed")
CLOSED: dict[str, Any] = {
    "authorizer": True,
    "super_users": "User:admin",
    "listener_security_protocol_map": "KAFKA:SASL_PLAINTEXT",
}


def cluster(node: Node, user: str) -> Cluster:
    login = Login(mechanism="SCRAM-SHA-256", user=user, password="a password")
    return Cluster([BrokerAddress(HOST, node.kafka_port)], ClientOptions(login=login, deadline_ms=10_000))


async def entries(http: Http, *, at_least: int = 1, last: str = "") -> list[dict[str, Any]]:
    """Entries without times, oldest first, as soon as there are so many and one of this action."""
    async with asyncio.timeout(20):
        while True:
            found = (await http.get("/admin/audit", **basic("admin"))).json["entries"]
            if len(found) >= at_least and last in ("", *(one["action"] for one in found)):
                return [{key: one[key] for key in FIELDS} for one in reversed(found)]
            await asyncio.sleep(0.05)


async def log_in_and_out(http: Http) -> None:
    answer = await http.post("/session", {"user": "admin", "password": "a password"})
    cookie = answer.headers["set-cookie"].partition(";")[0]
    headers = {"cookie": cookie, "x-csrf-token": answer.json["csrf_token"]}
    assert (await http.call("DELETE", "/session", headers=headers)).status == 200


def test_refusals_and_changes_of_both_doors_are_there(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        async with cluster(node, "mallory") as client:
            (refused,) = await Admin(client).delete_topics([TOPIC])
            assert refused is not None
        async with cluster(node, "admin") as client:
            await Admin(client).create_topics([NewTopic(name="made-by-admin")])
            await Admin(client).create_topics([NewTopic(name="made-by-admin")])
        await http.get(f"/admin/topics/{TOPIC}/messages", **basic("mallory"))
        await http.get(f"/admin/topics/{TOPIC}", **basic("admin", "wrong"))
        mine = {"name": "mine"}
        assert (await http.post("/admin/create-topic", mine, **basic("mallory"))).status == 403
        assert (await http.post("/admin/create-topic", mine, **basic("admin"))).status == 200
        assert (await http.post("/admin/create-topic", mine, **basic("admin"))).status == 409
        await log_in_and_out(http)
        found = await entries(http, last="logout")
        for expected in (
            ("User:admin", "http", "POST", f"/admin/create-topic {TOPIC}", True),
            ("User:mallory", "http", "POST", "/admin/create-topic mine", False),
            ("User:mallory", "kafka", "DELETE", f"topic {TOPIC}", False),
            ("User:admin", "kafka", "create_topics", "made-by-admin", True),
            ("User:mallory", "http", "GET", f"/admin/topics/{TOPIC}/messages", False),
            ("", "http", "login", "HTTP: a wrong user or password", False),
        ):
            assert dict(zip(FIELDS, expected, strict=True)) in found
        changes = [(one["principal"], one["action"], one["resource"]) for one in found if one["allowed"]]
        assert sorted(changes) == [
            ("User:admin", "POST", "/admin/create-topic mine"),
            ("User:admin", "POST", f"/admin/create-topic {TOPIC}"),
            ("User:admin", "POST", f"/admin/topics/{TOPIC}/messages"),
            ("User:admin", "POST", "/subjects/orders-of-ada-value/versions"),
            ("User:admin", "create_topics", "made-by-admin"),
            ("User:admin", "login", "/session"),
            ("User:admin", "logout", "/session"),
        ], "once each, and nothing of what was refused or failed"
        config = (await http.get(f"/admin/topics/{AUDIT_TOPIC}/config", **basic("admin"))).json["configs"]
        assert {one["name"]: one["value"] for one in config}["cleanup.policy"] == "delete"

    with_node(tmp_path, work, **CLOSED)


def test_clients_read_it_with_the_right_and_never_write_it(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        await entries(http, at_least=1)
        assert (await http.get("/admin/audit", **basic("ada"))).status == 403
        tp = TopicPartition(AUDIT_TOPIC, 0)
        right = AclBinding(
            resource_type=ResourceType.TOPIC,
            resource_name=AUDIT_TOPIC,
            principal="User:ada",
            operation=Operation.READ,
        )
        await node.parts.metadata.submit(AddAcls(bindings=(right,)))
        async with cluster(node, "ada") as client:
            end = (await list_offsets(client, {tp: LATEST}))[tp].offset
            async with Consumer(client) as consumer:
                consumer.assign({tp: (await list_offsets(client, {tp: EARLIEST}))[tp].offset})
                values = [json.loads(one.record.value or b"") async for one in consumer.records({tp: end})]
        assert {"User:admin"} == {value["principal"] for value in values if value["allowed"]}
        async with cluster(node, "admin") as client, Producer(client) as producer:
            with pytest.raises(RequestError) as refused:
                await (await producer.send(AUDIT_TOPIC, b"a lie", partition=0))
            assert refused.value.code == ErrorCode.invalid_topic_exception
            (kept,) = await Admin(client).delete_topics([AUDIT_TOPIC])
            assert kept is not None
        lie = await http.post(f"/admin/topics/{AUDIT_TOPIC}/messages", {"value": "a lie"}, **basic("admin"))
        assert lie.status == 400

    with_node(tmp_path, work, **CLOSED)


def test_paths_that_a_stranger_makes_up_are_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AuditWriter, "start", lambda _writer: None)

    async def work(node: Node, http: Http) -> None:
        audit = node.parts.security.audit
        audit.take(ENTRIES_MAX)
        for n in range(0, 1000, 20):
            paths = [f"/admin/topics/made-up-{one}/messages" for one in range(n, n + 20)]
            assert {one.status for one in await asyncio.gather(*map(http.get, paths))} == {401}
        (entry,) = audit.take(ENTRIES_MAX, with_all_sums=True)
        assert (entry.action, entry.resource, entry.count) == ("GET", "/admin/topics/{name}/messages", 1000)

    with_node(tmp_path, work, **CLOSED)


def test_topics_that_a_user_without_rights_makes_up_are_few_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AuditWriter, "start", lambda _writer: None)

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        audit = node.parts.security.audit
        audit.take(ENTRIES_MAX)
        async with cluster(node, "mallory") as client:
            await Admin(client).delete_topics([f"made-up-{n}" for n in range(1000)])
        *singly, rest = audit.take(ENTRIES_MAX, with_all_sums=True)
        assert len(singly) == CALLER_DENIALS_MAX
        assert (rest.principal, rest.action, rest.count) == ("User:mallory", MORE, 1000 - CALLER_DENIALS_MAX)

    with_node(tmp_path, work, **CLOSED)


@pytest.mark.parametrize("setting", ["off", "denials"])
def test_what_is_written_is_a_setting(tmp_path: Path, setting: str) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        await http.get(f"/admin/topics/{TOPIC}/messages", **basic("mallory"))
        if setting == "denials":
            found = await entries(http, at_least=1)
            assert [one["allowed"] for one in found] == [False]
        assert (AUDIT_TOPIC in node.parts.metadata.state.topics) is (setting == "denials")

    with_node(tmp_path, work, **CLOSED, audit_log=setting)
