"""Every HTTP endpoint: without a login, without the right, with the right. Walks the app's own list (X03)."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import tantivy
from msgspec import structs

from chronik.admin.endpoint import HttpAccess, HttpEndpoint
from chronik.admin.needs import is_by_node
from chronik.admin.routes import ENDPOINTS
from chronik.config import Settings
from chronik.metadata.commands import AddAcls, PutCredential, RemoveAcls
from chronik.model import AUDIT_TOPIC
from chronik.node import Node
from chronik.published.documents import CURRENT, FORMAT, FORMAT_FILE, Documents, Manifest, index_schema
from chronik.published.paths import Paths
from chronik.published.steps import PublishedStep, step_path
from chronik.security.acls import CLUSTER_NAME, AclBinding, Operation, ResourceType
from chronik.security.exchange import Authenticated
from chronik.security.scram import MECHANISMS, make_credential
from chronik.server import login_failures
from chronik.server.jwks import KeySource
from chronik.server.login_failures import DELAY_SECONDS, LoginFailures
from chronik.server.node_signature import NodeSignature
from tests.unit.admin.support import Answer, Http, with_node
from tests.unit.query.test_archive import write

TOPIC, GROUP, RECORD, TRANSACTION = "orders-of-ada", "readers-of-ada", "sesame", "transfers-of-ada"
SUBJECT = f"{TOPIC}-value"
BODIES: dict[str, dict[str, Any]] = {
    "add_node": {"node_id": 2, "kafka": "h:1", "wal": "h:2", "raft": "h:3"},
    "remove_node": {"node_id": 2},
    "create_topic": {"name": TOPIC},
    "change_topic_config": {"config": {"retention.ms": 1_000_000}},
    "produce_message": {"value": RECORD},
    "search_all": {"query": {"match_all": {}}},
    "search_topic": {"query": {"match_all": {}}},
    "search_node": {"request": {}, "partitions": {}, "topic_ids": {}},
    "sql": {"query": f'SELECT * FROM "{TOPIC}"'},
    "sql_explain": {"query": f'SELECT * FROM "{TOPIC}"'},
    "change_levels": {"log": ""},
    "make_key": {"name": "grafana"},
    "take_audit": {"entries": []},
    "explain_node": {"topic": TOPIC, "topic_id": "", "partition": 0, "offset": 0},
    "subscribe_metrics": {"metrics": "*"},
    "reset_offsets": {"to": "earliest", "topics": [{"topic": TOPIC}]},
    "add_partitions": {"count": 2, "dry_run": True},
    "reassign": {"moves": [{"topic": TOPIC, "partition": 0, "replicas": None}]},
    "abort_transaction": {"transactional_id": TRANSACTION},
    "register_schema": {"schema": '"int"'},
    "find_schema": {"schema": '"int"'},
    "check_schema": {"schema": '"int"'},
    "check_schema_version": {"schema": '"int"'},
    "set_schema_config": {"compatibility": "BACKWARD"},
    "set_subject_schema_config": {"compatibility": "BACKWARD"},
    "set_schema_mode": {"mode": "READWRITE"},
    "set_subject_schema_mode": {"mode": "READWRITE"},
    "registry_ask_node": {"operation": "subjects"},
    "registry_change_node": {"operation": "set_config", "value": "BACKWARD"},
    "finalize_upgrade": {"level": 2, "dry_run": True},
    "abort_here": {
        "topic": TOPIC,
        "partition": 0,
        "producer_id": 1,
        "producer_epoch": 0,
        "coordinator_epoch": 0,
    },
}
PARAMETERS = {
    "explain": "?partition=0&offset=0",
    "producers": "?partition=0",
    "backup_metadata": "?with_users=false",
}
NAMES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.CLUSTER: CLUSTER_NAME,
    ResourceType.TRANSACTIONAL_ID: TRANSACTION,
}
SHOWS_THE_TOPIC = {
    *("topics", "topic_details", "topic_config", "messages", "search_all", "search_topic"),
    *("sql_tables", "sql_tables_posted", "explain"),
    *("schema_subjects", "schema_version", "schema_list", "schema_id_subjects", "schema_id_versions"),
}
"""What must name the topic or its record to somebody with the right: else leaving it out proves nothing."""
FOR_SUPER_USERS = {"make_key"}
"""What no ACL gives: super users and full API keys alone."""


ACTION = (
    AclBinding(
        resource_type=ResourceType.CLUSTER,
        resource_name=CLUSTER_NAME,
        principal="User:ada",
        operation=Operation.CLUSTER_ACTION,
    ),
)


def basic(user: str, password: str = "a password") -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def path_of(one: HttpEndpoint) -> str:
    names = {"name": TOPIC, "topic": TOPIC, "group_id": GROUP, "file": "app.js", "key": "nobody"}
    names |= {"subject": SUBJECT, "version": "1", "id": "1"}
    return one.path.replace(":path}", "}").format_map(names)


async def call(http: Http, one: HttpEndpoint, headers: dict[str, str]) -> Answer:
    path = path_of(one)
    body = BODIES.get(one.name) if one.body is not None else None
    return await http.call(one.method, path + PARAMETERS.get(one.name, ""), body, headers)


def acls(one: HttpEndpoint, user: str) -> tuple[AclBinding, ...]:
    names = NAMES | ({ResourceType.TOPIC: AUDIT_TOPIC} if one.name == "audit_log" else {})
    return tuple(
        AclBinding(
            resource_type=kind, resource_name=names[kind], principal=f"User:{user}", operation=operation
        )
        for operation, kind in one.needs.demands
    )


async def prepare(node: Node, http: Http) -> None:
    submit = node.parts.metadata.submit
    for user in ("admin", "ada", "mallory"):
        credential = make_credential(MECHANISMS["SCRAM-SHA-256"], "a password", secrets.token_bytes(16), 4096)
        await submit(PutCredential(user=user, credential=credential))
    await http.post("/admin/create-topic", {"name": TOPIC, "config": {"searchable": True}}, **basic("admin"))
    produced = await http.post(f"/admin/topics/{TOPIC}/messages", {"value": RECORD}, **basic("admin"))
    assert produced.status == 200
    registered = await http.post(f"/subjects/{SUBJECT}/versions", {"schema": '"int"'}, **basic("admin"))
    assert registered.json == {"id": 1}


def is_refused(one: HttpEndpoint, answer: Answer) -> bool:
    """For want of a right. The schema registry has Confluent's codes."""
    if answer.status != 403:
        return False
    failure = json.loads(answer.body)
    if one.dialect is not None:
        return bool(failure["error_code"] == 40301)
    return bool(failure["code"].endswith("authorization_failed"))


def names_it(answer: Answer) -> bool:
    return any(word.encode() in answer.body for word in (TOPIC, RECORD, GROUP))


def is_last(one: HttpEndpoint) -> bool:
    return one.name in ("delete_topic", "delete_subject", "delete_schema_version")


def test_what_endpoints_need_is_what_they_do() -> None:
    """Records need READ; a change needs more than looking, but for offsets, which who READs them may commit;
    nothing but what is open needs nothing."""
    looking = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    for one in ENDPOINTS:
        demands = one.needs.demands
        asked = {operation for operation, _ in demands}
        if one.path.startswith("/_node/"):
            assert is_by_node(one.needs), one.path
            assert not demands, one.path
            continue
        if one.access is HttpAccess.DATA:
            assert (Operation.READ, ResourceType.TOPIC) in demands, one.path
        elif one.access is HttpAccess.CHANGE:
            assert asked - looking or (Operation.READ, ResourceType.GROUP) in demands, one.path
        asks_for_rights = one.access in (HttpAccess.STATUS, HttpAccess.DATA, HttpAccess.CHANGE)
        needs_some = asks_for_rights and one.path != "/session"
        assert bool(demands) is needs_some, one.path


def test_every_endpoint(tmp_path: Path) -> None:
    wrong: list[str] = []

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        submit = node.parts.metadata.submit
        for one in sorted(ENDPOINTS, key=is_last):
            where = f"{one.method} {one.path}"
            if one.path == "/session":
                continue  # tests/security/test_http_sessions.py
            answer = await call(http, one, {})
            is_open = one.access in (HttpAccess.OPEN, HttpAccess.HEALTH, HttpAccess.METRICS)
            if (answer.status == 401) is is_open or names_it(answer):
                wrong.append(f"{where}: without a login {answer.status} {answer.body[:200]!r}")
            answer = await call(http, one, basic("mallory"))
            refused = is_refused(one, answer)
            if (answer.status != 200 and not refused) or (answer.status == 200 and names_it(answer)):
                wrong.append(f"{where}: without the right {answer.status} {answer.body[:200]!r}")
            if not refused and not is_open and one.access is HttpAccess.CHANGE:
                wrong.append(f"{where}: changes something for anybody")
            rights = ACTION if one.path.startswith("/_node/") else acls(one, "ada")
            await submit(AddAcls(bindings=rights))
            answer = await call(http, one, basic("ada"))
            if rights == ACTION:
                if answer.status != 403:
                    wrong.append(f"{where}: a user that may act for the cluster is no node {answer.status}")
            elif one.name in FOR_SUPER_USERS:
                if answer.status != 403:
                    wrong.append(f"{where}: an ACL opens what is for super users {answer.status}")
            elif answer.status in (401, 403, 500) or (one.name in SHOWS_THE_TOPIC and not names_it(answer)):
                wrong.append(f"{where}: with the right {answer.status} {answer.body[:200]!r}")
            await submit(RemoveAcls(bindings=rights))

    with_node(tmp_path, work, authorizer=True, super_users="User:admin")
    assert wrong == []


def test_queries_over_many_topics_see_those_that_may_be_read(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        for name in ("mine", "hers"):
            body = {"name": name, "config": {"searchable": True}}
            await http.post("/admin/create-topic", body, **basic("admin"))
            written = {"value": json.dumps({"owner": name})}
            await http.post(f"/admin/topics/{name}/messages", written, **basic("admin"))
        right = AclBinding(
            resource_type=ResourceType.TOPIC,
            resource_name="mine",
            principal="User:ada",
            operation=Operation.READ,
        )
        await node.parts.metadata.submit(AddAcls(bindings=(right,)))

        async def sql(query: str) -> Answer:
            return await http.post("/_sql", {"query": query}, **basic("ada"))

        assert (await sql("SELECT owner FROM mine")).json["rows"] == [["mine"]]
        for query in (
            "SELECT * FROM mine UNION ALL SELECT * FROM hers",
            "SELECT (SELECT count(*) FROM hers) FROM mine",
            "WITH mine AS (SELECT * FROM hers) SELECT * FROM mine",
            "SELECT * FROM mine JOIN hers USING (key)",
            'SELECT * FROM "HERS"',
            "SELECT * FROM there_is_none",
        ):
            refused = await sql(query)
            assert (refused.status, refused.json["code"]) == (403, "topic_authorization_failed"), query
        tables = (await http.get("/_sql/tables", **basic("ada"))).json["tables"]
        assert [table["name"] for table in tables] == ["mine"]
        found = (await http.post("/_search", {"query": {"match_all": {}}}, **basic("ada"))).json
        assert [hit["_index"] for hit in found["hits"]["hits"]] == ["mine"]
        both = await http.post("/mine,hers/_search", {"query": {"match_all": {}}}, **basic("ada"))
        assert both.status == 403

        await node.parts.metadata.submit(RemoveAcls(bindings=(right,)))
        assert (await sql("SELECT owner FROM mine")).status == 403

    with_node(tmp_path, work, authorizer=True, super_users="User:admin")


def test_a_wrong_proof_is_answered_late_and_alike(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        loop = asyncio.get_running_loop()
        answers = set()
        for proof in (
            basic("ada", "wrong"),
            basic("nobody"),
            {"authorization": "Basic ***"},
            {"x-api-key": "wrong"},
            {"authorization": "Chronik-Node 1 1 1 1 1"},
        ):
            began = loop.time()
            answer = await http.get("/admin/topics", **proof)
            assert loop.time() - began >= DELAY_SECONDS
            answers.add((answer.status, answer.body))
        assert len(answers) == 1
        assert answers.pop()[0] == 401
        assert node.parts.security.failures.total == 5
        assert (await http.get("/admin/topics", **basic("ada"))).status == 200
        assert (await http.get("/health", **basic("ada", "wrong"))).status == 401

    with_node(tmp_path, work, authorizer=True, super_users="User:admin")


def test_guessing_from_one_address_is_held_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_failures, "DELAY_SECONDS_MAX", 0.5)

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        tries = [http.get("/admin/topics", **basic("ada", f"guess {n}")) for n in range(60)]
        statuses = Counter(answer.status for answer in await asyncio.gather(*tries))
        assert set(statuses) == {401, 429}
        assert statuses[401] < 40

    with_node(tmp_path, work, authorizer=True, super_users="User:admin")


def test_a_node_may_do_what_nodes_need_and_no_more(tmp_path: Path) -> None:
    secret = "of the nodes"

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)

        async def signed(one: HttpEndpoint, by: int = 1, body: Any = None) -> Answer:
            path = path_of(one)
            given = b"" if one.body is None else json.dumps(body or BODIES.get(one.name, {})).encode()
            target = path + PARAMETERS.get(one.name, "")
            header = NodeSignature((secret,), by, node.parts.services.now_ms).header(
                1, one.method, target, given
            )
            return await http.call(one.method, target, given or None, {"authorization": header})

        for one in ENDPOINTS:
            if one.access is HttpAccess.CHANGE and one.path != "/session":
                allowed = (await signed(one)).status not in (401, 403)
                assert allowed is is_by_node(one.needs), one.path
        found = {one.name: one for one in ENDPOINTS}
        assert (await signed(found["node_indices"])).status == 200
        assert not names_it(await signed(found["messages"]))
        indices = found["node_indices"].path
        header = NodeSignature((secret,), 1, node.parts.services.now_ms).header(1, "GET", indices, b"")
        assert (await http.get(f"{indices}?format=json", authorization=header)).status == 401, "not signed"
        assert (await signed(found["node_indices"], by=2)).status == 401, "there is no node 2"
        entry = {"time_ms": 1, "principal": "User:ada", "host": "h", "door": "http", "action": "GET"}
        forged = {"entries": [{**entry, "node_id": 2, "resource": "r", "allowed": True}]}
        assert (await signed(found["take_audit"], body=forged)).status == 403

    with_node(tmp_path, work, authorizer=True, super_users="User:admin", cluster_secret=secret)


def test_a_guesser_on_a_nodes_machine_does_not_keep_the_node_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes and shards of one machine share an address: searches and audit entries come by HTTP."""
    secret = "of the nodes"

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        monkeypatch.setattr(LoginFailures, "is_crowded", lambda _, host: True)
        one = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "node_indices")
        for by, status in ((1, 200), (2, 429)):
            signature = NodeSignature((secret,), by, node.parts.services.now_ms)
            header = signature.header(1, one.method, one.path, b"")
            answer = await http.call(one.method, one.path, None, {"authorization": header})
            assert answer.status == status
        assert (await http.get("/admin/topics", **basic("ada"))).status == 429
        assert (await http.get("/admin/topics", **basic("admin"))).status == 200, "was here lately"

    with_node(tmp_path, work, authorizer=True, super_users="User:admin", cluster_secret=secret)


def test_a_node_whose_clock_is_behind_is_told_so_and_not_punished(tmp_path: Path) -> None:
    """After a start it is refused for a while: no failed login of its address, which others share."""
    secret = "of the nodes"

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        one = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "node_indices")
        signature = NodeSignature((secret,), 1, lambda: node.parts.services.now_ms() - 30_000)
        header = signature.header(1, one.method, one.path, b"")
        before = node.parts.security.failures.total
        answer = await http.call(one.method, one.path, None, {"authorization": header})
        assert (answer.status, answer.json["code"]) == (401, "signature_not_in_time")
        assert node.parts.security.failures.total == before

    with_node(tmp_path, work, authorizer=True, super_users="User:admin", cluster_secret=secret)


def test_credentials_are_for_super_users_and_full_keys_only(tmp_path: Path) -> None:
    """Whoever may change the cluster can set passwords, and cannot take away what others' look like."""

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        right = structs.replace(ACTION[0], operation=Operation.ALTER)
        await node.parts.metadata.submit(AddAcls(bindings=(right,)))
        callers = {"ada": basic("ada"), "admin": basic("admin"), "key": {"x-api-key": "the old key"}}
        found = {
            name: await http.get("/admin/backup/metadata", **headers) for name, headers in callers.items()
        }
        assert {name: answer.status for name, answer in found.items()} == {
            "ada": 403,
            "admin": 200,
            "key": 200,
        }
        assert len(found["admin"].json["users"]) == 3
        without = await http.get("/admin/backup/metadata?with_users=false", **callers["ada"])
        assert (without.status, without.json["users"]) == (200, [])

    with_node(tmp_path, work, authorizer=True, super_users="User:admin", admin_api_key="the old key")


def test_a_call_that_waits_ends_with_its_right(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        right = AclBinding(
            resource_type=ResourceType.TOPIC,
            resource_name=TOPIC,
            principal="User:ada",
            operation=Operation.DESCRIBE,
        )
        metadata = node.parts.metadata
        await metadata.submit(AddAcls(bindings=(right,)))
        for name in ("ada", "key"):
            made = await http.post("/admin/keys", {"name": "k", "read_only": True}, **basic("admin"))
            caller = basic("ada") if name == "ada" else {"x-api-key": made.json["key"]}
            path = f"/admin/topics/{TOPIC}/watermarks"
            seen = (await http.get(path, **caller)).json["total"]
            waiting = asyncio.create_task(http.get(f"{path}?seen={seen}", **caller))
            while not metadata.bus.wants_watermarks:
                await asyncio.wait((waiting,), timeout=0.001)
            await metadata.submit(RemoveAcls(bindings=(right,)))
            await http.call("DELETE", "/admin/keys/k", headers=basic("admin"))
            await http.post(f"/admin/topics/{TOPIC}/messages", {"value": "x"}, **basic("admin"))
            answer = await waiting
            assert answer.status in (401, 403)
            assert "total" not in answer.json

    with_node(tmp_path, work, authorizer=True, super_users="User:admin")


def test_a_call_that_waits_ends_with_its_password_or_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        metadata, security = node.parts.metadata, node.parts.security
        path = f"/admin/topics/{TOPIC}/watermarks"
        right = AclBinding(
            resource_type=ResourceType.TOPIC,
            resource_name=TOPIC,
            principal="User:ada",
            operation=Operation.DESCRIBE,
        )
        await metadata.submit(AddAcls(bindings=(right,)))
        seen = (await http.get(path, **basic("ada"))).json["total"]
        assert (await http.get(f"{path}?seen={seen}&wait_ms=1", **basic("ada"))).status == 200
        waiting = asyncio.create_task(http.get(f"{path}?seen={seen}", **basic("ada")))
        while not metadata.bus.wants_watermarks:
            await asyncio.wait((waiting,), timeout=0.001)
        other = make_credential(MECHANISMS["SCRAM-SHA-256"], "another", secrets.token_bytes(16), 4096)
        await metadata.submit(PutCredential(user="ada", credential=other))
        await http.post(f"/admin/topics/{TOPIC}/messages", {"value": "x"}, **basic("admin"))
        assert (await waiting).status == 401

        ends_ms = node.parts.services.now_ms()

        async def check_token(_token: str, _host: str) -> Authenticated:
            return Authenticated("User:ada", ends_ms)

        monkeypatch.setattr(security.authenticator, "keys", KeySource(Settings()))
        monkeypatch.setattr(security.authenticator, "check_token", check_token)
        token = {"authorization": "Bearer a.b.c"}
        seen += 1
        assert (await http.get(f"{path}?seen={seen}&wait_ms=1", **token)).status == 401
        ends_ms += 3_600_000
        assert (await http.get(f"{path}?seen={seen}&wait_ms=1", **token)).status == 200

    with_node(tmp_path, work, authorizer=True, super_users="User:admin")


def test_archives_and_published_indexes_show_what_may_be_read(tmp_path: Path) -> None:
    """Records that only an archive or a published index still has are as closed as those of the log."""
    archive, published = tmp_path / "archive", tmp_path / "indexes"
    shape = pa.struct([("id", pa.int64())])

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        for name in ("mine", "hers"):
            body = {"name": name, "partitions": 1, "config": {"searchable": True}}
            await http.post("/admin/create-topic", body, **basic("admin"))
            topic_id = str(node.parts.metadata.state.topics[name].topic_id)
            file = f"topic={name}/date=2024-05-01/0.parquet"
            write(archive, file, range(1), shape, [{"id": 42}])
            step = PublishedStep(
                version=0,
                topic=name,
                topic_id=topic_id,
                ranges={"0": (0, 1)},
                offsets={"0": 1},
                rows=1,
                moves={"s/0": file},
            )
            (archive / step_path(name, 0)).parent.mkdir(parents=True)
            (archive / step_path(name, 0)).write_bytes(msgspec.json.encode(step))
            publish_index(published, name, topic_id)
        right = structs.replace(ACTION[0], resource_type=ResourceType.TOPIC, resource_name="mine")
        await node.parts.metadata.submit(
            AddAcls(bindings=(structs.replace(right, operation=Operation.READ),))
        )
        for user, seen in (("ada", {"mine"}), ("admin", {"mine", "hers"}), ("mallory", set())):
            for name in ("mine", "hers"):
                query = {"query": f"SELECT id FROM {name}"}
                answer = await http.post("/_sql", query, **basic(user))
                assert (answer.status == 200) is (name in seen), (user, name, answer.body)
                assert (b"42" in answer.body) is (name in seen)
            found = (await http.post("/_search", {"query": {"match": {"word": SECRET}}}, **basic(user))).json
            assert {hit["_index"] for hit in found["hits"]["hits"]} == seen, (user, found)
            for name in ("mine", "hers"):
                one = await http.post(f"/{name}/_search", {"query": {"match_all": {}}}, **basic(user))
                assert (SECRET.encode() in one.body) is (name in seen), (user, name)

    with_node(
        tmp_path / "data",
        work,
        authorizer=True,
        super_users="User:admin",
        archive_dir=archive,
        published_index_dir=published,
        disable_realtime_index=True,
    )


SECRET = "onlyhere"


def publish_index(root: Path, topic: str, topic_id: str) -> None:
    path = root / topic / "000000"
    path.mkdir(parents=True)
    writer = tantivy.Index(index_schema(), path=str(path)).writer(16 << 20, 1)
    paths = Paths()
    Documents(writer, paths).add(b"k", json.dumps({"word": SECRET}).encode(), 0, 0, 0)
    paths.save(path)
    writer.commit()
    writer.wait_merging_threads()
    (path / FORMAT_FILE).write_text(FORMAT)
    manifest = Manifest(
        format=FORMAT,
        topic=topic,
        topic_id=topic_id,
        version=0,
        path=path.name,
        offsets={"0": 1},
        documents=1,
    )
    (root / topic / CURRENT).write_bytes(msgspec.json.encode(manifest))
