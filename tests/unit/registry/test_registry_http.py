"""The schema registry over HTTP: Confluent's answers, codes and options, on one node (H06)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from chronik.admin.routes import ENDPOINTS
from chronik.admin.schema_calls import MEDIA_TYPE, topic_of
from chronik.metadata.commands import AddAcls, CreateTopic, PutCredential
from chronik.model import SCHEMAS_TOPIC, TopicPartition
from chronik.node import Node
from chronik.records.batch import headers
from chronik.records.reader import read_records
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.security.scram import MECHANISMS, make_credential
from tests.unit.admin.support import Answer, Http, with_node

PROTO = 'syntax = "proto3"; message M { int32 x = 1; }'


def avro(*fields: str, name: str = "R", kind: str = "int") -> dict[str, str]:
    """A record of these fields; those with a `?` have a default."""
    made = [
        {"name": one.rstrip("?"), "type": kind, **({"default": 0} if one.endswith("?") else {})}
        for one in fields
    ]
    return {"schema": json.dumps({"type": "record", "name": name, "fields": made})}


class Registry:
    def __init__(self, node: Node, http: Http) -> None:
        self.node = node
        self.http = http

    async def call(self, method: str, path: str, body: object = None, code: int = 200, **headers: str) -> Any:
        """The answer's value; its status or error code is `code`."""
        answer = await self.http.call(method, path, body, headers)
        assert answer.headers["content-type"] == MEDIA_TYPE
        if code == 200:
            assert answer.status == 200, answer.body
            return answer.json
        assert answer.json["error_code"] == code, answer.body
        assert answer.status == (code if code < 1000 else code // 100)
        return answer.json["message"]

    async def get(self, path: str, code: int = 200) -> Any:
        return await self.call("GET", path, code=code)

    async def register(self, subject: str, body: object, code: int = 200) -> Any:
        found = await self.call("POST", f"/subjects/{subject}/versions", body, code)
        return found["id"] if code == 200 else found


def with_registry(folder: Path, work: Callable[[Registry], Awaitable[None]], **settings: Any) -> None:
    async def run(node: Node, http: Http) -> None:
        await work(Registry(node, http))

    with_node(folder, run, **settings)


def test_before_anything_is_registered_there_is_no_topic(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        assert await registry.get("/subjects") == []
        assert await registry.get("/schemas/types") == ["JSON", "PROTOBUF", "AVRO"]
        assert await registry.get("/config") == {"compatibilityLevel": "BACKWARD"}
        assert await registry.get("/mode") == {"mode": "READWRITE"}
        await registry.get("/subjects/s/versions", 40401)
        await registry.get("/schemas/ids/1", 40403)
        for number in ("0", "2147483648", "000000000001" + "9" * 5_000, "x"):
            await registry.get(f"/subjects/s/versions/{number}", 42202)
        assert SCHEMAS_TOPIC not in registry.node.parts.services.state.topics
        await registry.register("s", avro("a"))
        topic = registry.node.parts.services.state.topics[SCHEMAS_TOPIC]
        assert topic.configs["cleanup.policy"] == "compact"

    with_registry(tmp_path, work)


def test_schemas_are_registered_found_and_fetched(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        assert [await registry.register("s", avro("a")) for _ in range(2)] == [1, 1]
        assert await registry.register("s", avro("a", "b?")) == 2
        assert await registry.register("other", avro("a")) == 1
        assert await registry.get("/subjects") == ["other", "s"]
        assert await registry.get("/subjects?subjectPrefix=o") == ["other"]
        assert await registry.get("/subjects?offset=1&limit=1&unknown=x") == ["s"]
        assert await registry.get("/subjects/s/versions") == [1, 2]
        latest = await registry.get("/subjects/s/versions/latest")
        assert (
            latest
            == await registry.get("/subjects/s/versions/2")
            == await registry.get("/subjects/s/versions/-1")
        )
        assert {name: latest[name] for name in ("subject", "version", "id")} == {
            "subject": "s",
            "version": 2,
            "id": 2,
        }
        assert "schemaType" not in latest
        assert json.loads(latest["schema"]) == await registry.get("/subjects/s/versions/2/schema")
        assert await registry.get("/schemas/ids/2") == {"schema": latest["schema"]}
        assert (await registry.get("/schemas/ids/1?fetchMaxId=true"))["maxId"] == 2
        assert await registry.get("/schemas/ids/1/subjects") == ["other", "s"]
        assert await registry.get("/schemas/ids/1/versions") == [
            {"subject": "other", "version": 1},
            {"subject": "s", "version": 1},
        ]
        assert [one["id"] for one in await registry.get("/schemas")] == [1, 1, 2]
        assert [one["id"] for one in await registry.get("/schemas?latestOnly=true")] == [1, 2]
        found = await registry.call("POST", "/subjects/s?normalize=False", avro("a"))
        assert (found["version"], found["id"]) == (1, 1)
        await registry.call("POST", "/subjects/s", avro("z"), 40403)
        await registry.call("POST", "/subjects/none", avro("z"), 40401)
        for version, code in (("0", 42202), ("x", 42202), ("3", 40402), (str(1 << 31), 42202)):
            await registry.get(f"/subjects/s/versions/{version}", code)

    with_registry(tmp_path, work)


def test_what_is_no_schema_is_refused(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        for body in (
            {"schema": "{"},
            {"schema": ""},
            {"schema": '"int"', "schemaType": "XML"},
            {"schema": '"int"', "metadata": {"properties": {}, "x": 1}},
            {"schema": '"int"', "references": [{"name": "x", "subject": "x", "version": 1}]},
            {"schema": '"' + "x" * 500_000 + '"'},
        ):
            await registry.register("s", body, 42201)
        await registry.register("s", b"{", 400)
        await registry.register("s", {"schema": 1}, 400)
        await registry.register(":.context:s", {"schema": '"int"'}, 42208)
        await registry.register("s" * 600, {"schema": '"int"'}, 42208)
        assert await registry.get("/subjects") == []

    with_registry(tmp_path, work)


@pytest.mark.parametrize(
    ("level", "old", "new", "is_compatible"),
    [
        ("BACKWARD", ("a", "b"), ("a",), True),
        ("BACKWARD", ("a",), ("a", "b"), False),
        ("FORWARD", ("a",), ("a", "b"), True),
        ("FORWARD", ("a", "b"), ("a",), False),
        ("FULL", ("a", "b?"), ("a",), True),
        ("FULL", ("a",), ("a", "b"), False),
        ("NONE", ("a",), ("b",), True),
    ],
)
def test_each_level(tmp_path: Path, level: str, old: Any, new: Any, is_compatible: bool) -> None:
    async def work(registry: Registry) -> None:
        assert await registry.call("PUT", "/config/s", {"compatibility": level}) == {"compatibility": level}
        await registry.register("s", avro(*old))
        found = await registry.call("POST", "/compatibility/subjects/s/versions/latest", avro(*new))
        assert found == {"is_compatible": is_compatible}
        found = await registry.call("POST", "/compatibility/subjects/s/versions?verbose=true", avro(*new))
        assert (found["messages"] == []) == is_compatible
        if is_compatible:
            assert await registry.register("s", avro(*new)) == 2
        else:
            assert "incompatible with an earlier schema" in await registry.register("s", avro(*new), 409)

    with_registry(tmp_path, work)


def test_transitive_levels_look_at_all_versions(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        await registry.call("PUT", "/config", {"compatibility": "none"})
        await registry.register("s", avro("a", kind="long"))
        await registry.register("s", avro("a", kind="int"))
        await registry.call("PUT", "/config/s", {"compatibility": "BACKWARD_TRANSITIVE"})
        narrow = avro("a", "b?", kind="int")
        assert "reading version 1" in await registry.register("s", narrow, 409)
        await registry.call("PUT", "/config/s", {"compatibility": "BACKWARD"})
        assert await registry.register("s", narrow) == 3

    with_registry(tmp_path, work)


def test_deleting_softly_and_for_good(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        for fields in (("a",), ("a", "b?"), ("a", "c?")):
            await registry.register("s", avro(*fields))
        await registry.call("DELETE", "/subjects/s/versions/2?permanent=true", code=40407)
        assert await registry.call("DELETE", "/subjects/s/versions/2") == 2
        await registry.call("DELETE", "/subjects/s/versions/2", code=40406)
        assert await registry.get("/subjects/s/versions") == [1, 3]
        assert await registry.get("/subjects/s/versions?deleted=true") == [1, 2, 3]
        assert await registry.get("/subjects/s/versions?deletedOnly=true") == [2]
        await registry.get("/subjects/s/versions/2", 40402)
        assert (await registry.get("/subjects/s/versions/2?deleted=true"))["id"] == 2
        assert await registry.get("/schemas/ids/2/subjects") == []
        await registry.get("/schemas/ids/2")
        assert await registry.register("s", avro("a", "b?")) == 2
        assert await registry.get("/subjects/s/versions") == [1, 3, 4]

        await registry.call("PUT", "/config/s", {"compatibility": "FULL"})
        await registry.call("DELETE", "/subjects/s?permanent=true", code=40405)
        assert await registry.call("DELETE", "/subjects/s") == [1, 3, 4]
        await registry.call("DELETE", "/subjects/s", code=40404)
        await registry.get("/config/s", 40408)
        assert await registry.get("/subjects") == []
        assert await registry.get("/subjects?deleted=true") == ["s"]
        assert await registry.call("DELETE", "/subjects/s?permanent=true") == [1, 2, 3, 4]
        await registry.call("DELETE", "/subjects/s?permanent=true", code=40401)
        await registry.get("/schemas/ids/3", 40403)

    with_registry(tmp_path, work)


def test_no_id_is_given_twice_however_much_was_deleted(tmp_path: Path) -> None:
    """The last record with the highest id may be gone from the log; ids go on behind it."""

    async def first(registry: Registry) -> None:
        assert await registry.register("s", avro("a")) == 1
        await registry.call("DELETE", "/subjects/s")
        await registry.call("DELETE", "/subjects/s?permanent=true")
        keys = [key for key, _ in await records(registry.node)]
        assert {"keytype": "NOOP", "magic": 0} in keys

    async def second(registry: Registry) -> None:
        assert await registry.get("/subjects?deleted=true") == []
        assert await registry.register("s", avro("b")) == 2

    with_registry(tmp_path, first)
    with_registry(tmp_path, second)


async def records(node: Node) -> list[tuple[Any, Any]]:
    """Keys and values of `_schemas`."""
    partition = node.parts.services.replicas.get(TopicPartition(SCHEMAS_TOPIC, 0))
    assert partition is not None
    found = await partition.read(0, 1 << 20, partition.log_end_offset)
    return [
        (json.loads(one.key or b""), None if one.value is None else json.loads(one.value))
        for buffer in found.buffers
        for position, header in headers(buffer)
        for one in read_records(memoryview(buffer)[position : position + header.size_bytes])
    ]


def test_records_are_those_of_confluents_registry(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        await registry.register("s", {"schema": '"int"'})
        await registry.register("p", {"schema": PROTO, "schemaType": "PROTOBUF"})
        await registry.call("PUT", "/config", {"compatibility": "FULL"})
        await registry.call("PUT", "/mode/p", {"mode": "READONLY"})
        await registry.call("DELETE", "/subjects/s")
        found = await records(registry.node)
        assert found[0] == (
            {"keytype": "SCHEMA", "subject": "s", "version": 1, "magic": 1},
            {"subject": "s", "version": 1, "id": 1, "schema": '"int"', "deleted": False},
        )
        assert found[1][1]["schemaType"] == "PROTOBUF"
        assert found[2:] == [
            ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL"}),
            ({"keytype": "MODE", "subject": "p", "magic": 0}, {"mode": "READONLY"}),
            ({"keytype": "DELETE_SUBJECT", "subject": "s", "magic": 0}, {"subject": "s", "version": 1}),
        ]

    with_registry(tmp_path, work)


def test_a_start_brings_everything_back(tmp_path: Path) -> None:
    shown: list[Any] = []

    async def look(registry: Registry) -> Any:
        paths = ("/schemas?deleted=true", "/config/s", "/mode/s", "/config", "/subjects")
        return [await registry.get(path) for path in paths]

    async def first(registry: Registry) -> None:
        await registry.register("s", avro("a"))
        await registry.register("s", avro("a", "b?"))
        await registry.call("DELETE", "/subjects/s/versions/1")
        await registry.call("PUT", "/config/s", {"compatibility": "FULL"})
        await registry.call("PUT", "/mode/s", {"mode": "READONLY"})
        shown.append(await look(registry))

    async def second(registry: Registry) -> None:
        assert await look(registry) == shown[0]

    with_registry(tmp_path, first)
    with_registry(tmp_path, second)


def test_references(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        await registry.register(
            "user", {"schema": json.dumps(json.loads(avro("id", name="a.User")["schema"]))}
        )
        order = {
            "schema": json.dumps(
                {"type": "record", "name": "Order", "fields": [{"name": "user", "type": "a.User"}]}
            ),
            "references": [{"name": "a.User", "subject": "user", "version": 1}],
        }
        assert await registry.register("order", order) == 2
        assert (await registry.get("/schemas/ids/2"))["references"] == order["references"]
        assert await registry.get("/subjects/user/versions/1/referencedby") == [2]
        await registry.call("DELETE", "/subjects/user", code=42206)
        await registry.call("DELETE", "/subjects/user/versions/1", code=42206)
        await registry.register("order", {"schema": order["schema"]}, 42201)
        await registry.call("DELETE", "/subjects/order")
        assert await registry.call("DELETE", "/subjects/user") == [1]

    with_registry(tmp_path, work)


def test_protobuf_with_a_slash_in_a_subjects_name(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        await registry.register("a%2Fb.proto", {"schema": PROTO, "schemaType": "PROTOBUF"})
        using = 'syntax = "proto3"; import "a/b.proto"; message N { M m = 1; }'
        reference = {"name": "a/b.proto", "subject": "a/b.proto", "version": 1}
        body = {"schema": using, "schemaType": "PROTOBUF", "references": [reference]}
        assert await registry.register("n-value", body) == 2
        found = await registry.get("/subjects/a%2Fb.proto/versions/1?format=serialized")
        assert found["subject"] == "a/b.proto"
        assert b"M" in base64.b64decode(found["schema"])
        descriptor = (await registry.get("/schemas/ids/2?format=serialized"))["schema"]
        assert await registry.register("n-value", {**body, "schema": descriptor}) == 2
        assert (await registry.http.get("/admin/topics/a%2Fb")).status == 404
        await registry.call("GET", "/subjects/a%00b.proto/versions", code=42208)

    with_registry(tmp_path, work)


def test_modes(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        await registry.call("PUT", "/mode/s", {"mode": "sleeping"}, 42204)
        await registry.register("s", {"schema": '"int"', "id": 7}, 42205)
        await registry.call("PUT", "/mode/s", {"mode": "IMPORT"})
        await registry.register("s", {"schema": '"int"'}, 42205)
        assert await registry.register("s", {"schema": '"int"', "id": 7, "version": 3}) == 7
        assert await registry.register("s", {"schema": '"int"', "id": 7, "version": 3}) == 7
        await registry.register("s", {"schema": '"long"', "id": 7, "version": 4}, 42205)
        await registry.register("s", {"schema": '"long"', "id": 8, "version": 3}, 42205)
        assert await registry.get("/subjects/s/versions") == [3]
        await registry.call("PUT", "/mode/t", {"mode": "READONLY"})
        await registry.register("t", {"schema": '"int"'}, 42205)
        assert await registry.call("DELETE", "/mode/t") == {"mode": "READONLY"}
        assert await registry.register("t", {"schema": '"string"'}) == 8
        await registry.call("PUT", "/mode", {"mode": "IMPORT"}, 42205)
        await registry.call("PUT", "/mode?force=true", {"mode": "READONLY_OVERRIDE"})
        await registry.register("s", {"schema": '"bytes"', "id": 9}, 42205)
        await registry.call("DELETE", "/subjects/t", code=42205)
        assert await registry.get("/mode/s?defaultToGlobal=true") == {"mode": "READONLY_OVERRIDE"}

    with_registry(tmp_path, work)


def test_configs(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        await registry.call("PUT", "/config", {"compatibility": "SOMETIMES"}, 42203)
        await registry.call("PUT", "/config", {"alias": "x", "compatibility": "FULL"}, 42205)
        await registry.get("/config/s", 40408)
        assert await registry.get("/config/s?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
        await registry.call("PUT", "/config", {"compatibility": "FULL"})
        assert await registry.call("DELETE", "/config") == {"compatibilityLevel": "FULL"}
        await registry.call("DELETE", "/config/s", code=40401)
        assert await registry.get("/config") == {"compatibilityLevel": "BACKWARD"}

    with_registry(tmp_path, work)


def test_many_at_once_get_ids_of_their_own(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        names = [f"s{n % 5}" for n in range(40)]
        ids = await asyncio.gather(
            *(registry.register(name, avro("a", f"f{n}?")) for n, name in enumerate(names))
        )
        assert sorted(ids) == list(range(1, 41))
        same = await asyncio.gather(*(registry.register("same", {"schema": '"int"'}) for _ in range(20)))
        assert set(same) == {41}
        assert await registry.get("/subjects/same/versions") == [1]

    with_registry(tmp_path, work)


def test_the_registry_is_bounded(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        doc = "x" * 100_000
        codes = []
        for n in range(8):
            schema = {"type": "record", "name": f"R{n}", "doc": doc, "fields": []}
            answer = await registry.http.post(f"/subjects/s{n}/versions", {"schema": json.dumps(schema)})
            codes.append(answer.status if answer.status == 200 else answer.json["error_code"])
        assert codes == [200] * 5 + [42290] * 3
        metrics = (await registry.http.get("/metrics")).body.decode()
        assert "chronik_schema_registry_versions 5.0" in metrics
        assert "chronik_schema_registry_refused_total 3.0" in metrics
        await registry.call("DELETE", "/subjects/s1")
        await registry.call("DELETE", "/subjects/s1?permanent=true")
        await registry.register("s9", {"schema": json.dumps(schema)})

    with_registry(tmp_path, work, schema_registry_bytes_max=1024 * 1024 + 10_000)


KEY = "swordfish"


def test_keys_and_the_audit_log(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        admin = {"authorization": f"Bearer {KEY}"}
        made = await registry.http.post("/admin/keys", {"name": "reader", "read_only": True}, **admin)
        reader = {"authorization": f"Bearer {made.json['key']}"}
        await registry.call("POST", "/subjects/s/versions", {"schema": '"int"'}, 40101)
        await registry.call("POST", "/subjects/s/versions", {"schema": '"int"'}, 40301, **reader)
        await registry.call("POST", "/subjects/s/versions", {"schema": '"int"'}, **admin)
        assert await registry.call("GET", "/schemas/ids/1", **reader) == {"schema": '"int"'}
        await registry.call("POST", "/subjects/s", {"schema": '"int"'}, **reader)
        await registry.call("PUT", "/config", {"compatibility": "NONE"}, 40301, **reader)
        foreign = await registry.http.call("GET", "/subjects", None, {**admin, "host": "evil.example"})
        assert foreign.status == 403
        entries = await audited(registry, admin)
        assert ("Key:reader", "POST", "/subjects/s/versions", False) in entries
        assert ("Key:admin_api_key", "POST", "/subjects/s/versions", True) in entries
        assert ("Key:reader", "PUT", "/config", False) in entries

    with_registry(tmp_path, work, admin_api_key=KEY, authorizer=True)


def test_who_has_a_topic_does_not_choose_ids(tmp_path: Path) -> None:
    """The highest id there can be, and nobody would get another one."""

    async def work(registry: Registry) -> None:
        submit = registry.node.parts.metadata.submit
        credential = make_credential(MECHANISMS["SCRAM-SHA-256"], "a password", b"0" * 16, 4096)
        await submit(PutCredential(user="ada", credential=credential))
        everything = AclBinding(
            resource_type=ResourceType.TOPIC, resource_name="s", principal="User:ada", operation=Operation.ALL
        )
        await submit(AddAcls(bindings=(everything,)))
        ada = {"authorization": "Basic " + base64.b64encode(b"ada:a password").decode()}
        await registry.call("PUT", "/mode/s", {"mode": "import"}, 40301, **ada)
        await registry.call("PUT", "/mode/s", {"mode": "READONLY"}, **ada)
        await registry.call("PUT", "/mode/s", {"mode": "IMPORT"}, authorization=f"Bearer {KEY}")

    with_registry(tmp_path, work, admin_api_key=KEY, authorizer=True)


async def audited(registry: Registry, admin: dict[str, str]) -> list[tuple[str, str, str, bool]]:
    """Entries of the audit log, once it has what was done last."""
    while True:
        found: Answer = await registry.http.get("/admin/audit", **admin)
        entries = found.json.get("entries", [])
        if any(one["resource"] == "/config" for one in entries):
            return [(one["principal"], one["action"], one["resource"], one["allowed"]) for one in entries]


def test_subjects_stand_for_topics() -> None:
    assert [
        topic_of(one) for one in ("orders-value", "orders-key", "orders", "-value", "com.acme.Order")
    ] == [*("orders", "orders", "orders", "-value", "com.acme.Order")]


def test_clients_cannot_make_or_change_the_topic(tmp_path: Path) -> None:
    async def work(registry: Registry) -> None:
        made = await registry.http.post("/admin/create-topic", {"name": SCHEMAS_TOPIC})
        assert made.status == 400
        await registry.register("s", {"schema": '"int"'})
        answer = await registry.http.post(f"/admin/topics/{SCHEMAS_TOPIC}/messages", {"value": "x"})
        assert answer.status == 400, answer.body
        assert (await registry.http.call("DELETE", f"/admin/topics/{SCHEMAS_TOPIC}")).status == 400
        assert (await registry.http.get("/admin/topics")).json == []
        (listed,) = (await registry.http.get("/admin/topics?internal=true")).json
        assert (listed["name"], listed["is_internal"]) == (SCHEMAS_TOPIC, True)

    with_registry(tmp_path, work)


def test_a_topic_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    """A client made it on a node that had no registry yet. It can be deleted, and makes room."""

    async def work(registry: Registry) -> None:
        services = registry.node.parts.services
        made = CreateTopic(
            name=SCHEMAS_TOPIC,
            topic_id=services.new_uuid(),
            assignments=((1,),),
            configs={"retention.ms": "-1"},
        )
        await services.metadata.submit(made)
        assert "is not one of a registry" in await registry.get("/subjects", 50001)
        await registry.register("s", {"schema": '"int"'}, 50001)
        assert services.schemas.state_here is None
        assert (await registry.http.call("DELETE", f"/admin/topics/{SCHEMAS_TOPIC}")).status == 200
        assert await registry.register("s", {"schema": '"int"'}) == 1

    with_registry(tmp_path, work)


def test_every_change_needs_a_key_where_keys_are_set() -> None:
    ours = [one for one in ENDPOINTS if one.dialect is not None]
    assert len(ours) == 28
    for one in ours:
        is_question = one.method == "GET" or one.path in (
            *("/subjects/{subject}", "/compatibility/subjects/{subject}/versions"),
            "/compatibility/subjects/{subject}/versions/{version}",
        )
        assert one.access.value == ("status" if is_question and one.method != "DELETE" else "change"), (
            one.path
        )
