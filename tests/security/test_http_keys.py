"""Named API keys: made once, kept as digests, revoked at once; read-only ones change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronik.admin.endpoint import HttpAccess
from chronik.admin.routes import ENDPOINTS
from chronik.metadata.commands import AddAcls
from chronik.node import Node
from chronik.security.acls import CLUSTER_NAME, AclBinding, Operation, Permission, ResourceType
from tests.security.test_http_rights import TOPIC, basic, call, prepare
from tests.unit.admin.support import Http, with_node

ADMIN = basic("admin")
CLOSED: dict[str, Any] = {"authorizer": True, "super_users": "User:admin", "admin_api_key": "the old key"}

QUERIES = {one.name for one in ENDPOINTS if one.path.startswith("/_") or one.path.endswith("/_search")}
"""They would start the query processes, and their rights are those of other endpoints."""

OTHERS = {
    *("delete_topic", "revoke_key", "unsubscribe_metrics", "make_key", "session", "log_in", "log_out"),
    *(
        "delete_subject",
        "delete_schema_version",
        "delete_subject_schema_config",
        "delete_subject_schema_mode",
    ),
}


async def made(http: Http, name: str, *, read_only: bool = False) -> dict[str, str]:
    answer = await http.post("/admin/keys", {"name": name, "read_only": read_only}, **ADMIN)
    assert answer.status == 200, answer.body
    return {"x-api-key": answer.json["key"]}


def test_a_key_may_do_what_it_was_made_for(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        full, looking = await made(http, "full"), await made(http, "looking", read_only=True)
        for one in ENDPOINTS:
            if one.name in OTHERS or one.name in QUERIES:
                continue
            old = (await call(http, one, {"authorization": "Bearer the old key"})).status
            assert (await call(http, one, full)).status == old, one.path
            allowed = (await call(http, one, looking)).status not in (401, 403)
            assert allowed is (one.access is not HttpAccess.CHANGE), one.path
        assert (await http.get("/_node/indices", **looking)).status == 403
        listed = (await http.get("/admin/keys", **ADMIN)).json["keys"]
        assert [(key["name"], key["read_only"]) for key in listed] == [("full", False), ("looking", True)]
        assert (await http.post("/admin/keys", {"name": "full"}, **ADMIN)).status == 409
        assert (await http.post("/admin/keys", {"name": "admin_api_key"}, **ADMIN)).status == 409
        assert (await http.post("/admin/keys", {"name": "a b"}, **ADMIN)).status == 400
        assert (await http.call("DELETE", "/admin/keys/looking", headers=ADMIN)).status == 200
        assert (await http.get(f"/admin/topics/{TOPIC}", **looking)).status == 401
        assert (await http.get(f"/admin/topics/{TOPIC}", **full)).status == 200
        kept = node.settings.data_dir
        written = b"".join(path.read_bytes() for path in kept.rglob("*") if path.is_file())
        assert full["x-api-key"].encode() not in written

    with_node(tmp_path, work, **CLOSED)


def test_keys_are_made_by_super_users_and_full_keys_only(tmp_path: Path) -> None:
    """ACLs do not bind a key: whoever else made one could read with it what an ACL denies him."""

    def acl(kind: ResourceType, name: str, operation: Operation, permission: Permission) -> AclBinding:
        return AclBinding(
            resource_type=kind,
            resource_name=name,
            principal="User:ada",
            operation=operation,
            permission=permission,
        )

    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        alter = acl(ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER, Permission.ALLOW)
        denied = acl(ResourceType.TOPIC, TOPIC, Operation.ALL, Permission.DENY)
        await node.parts.metadata.submit(AddAcls(bindings=(alter, denied)))
        ada = basic("ada")
        looking = await made(http, "looking", read_only=True)
        for caller in (ada, looking):
            for read_only in (False, True):
                refused = await http.post("/admin/keys", {"name": "mine", "read_only": read_only}, **caller)
                assert (refused.status, refused.json["code"]) == (403, "cluster_authorization_failed")
        full = await made(http, "full")
        assert (await http.post("/admin/keys", {"name": "by-a-key"}, **full)).status == 200
        names = [key["name"] for key in (await http.get("/admin/keys", **ada)).json["keys"]]
        assert names == ["by-a-key", "full", "looking"]
        assert (await http.call("DELETE", "/admin/keys/by-a-key", headers=looking)).status == 403
        assert (await http.call("DELETE", "/admin/keys/by-a-key", headers=ada)).status == 200

    with_node(tmp_path, work, **CLOSED)


def test_keys_survive_a_restart_and_work_without_an_authorizer(tmp_path: Path) -> None:
    found: dict[str, dict[str, str]] = {}

    async def first(node: Node, http: Http) -> None:
        old = {"x-api-key": "the old key"}
        answer = await http.post("/admin/keys", {"name": "looking", "read_only": True}, **old)
        found["looking"] = {"x-api-key": answer.json["key"]}

    async def second(node: Node, http: Http) -> None:
        assert (await http.get("/admin/topics/t/messages", **found["looking"])).status == 404
        assert (await http.get("/admin/topics/t/messages")).status == 401
        assert (await http.post("/admin/create-topic", {"name": "t"}, **found["looking"])).status == 403
        assert (await http.post("/admin/create-topic", {"name": "t"})).status == 401

    with_node(tmp_path, first, admin_api_key="the old key")
    with_node(tmp_path, second, admin_api_key="the old key")


@pytest.mark.parametrize("needs_key", [False, True])
def test_what_is_open_without_a_login_is_a_setting_and_names_nothing(tmp_path: Path, needs_key: bool) -> None:
    async def work(node: Node, http: Http) -> None:
        await prepare(node, http)
        for path in ("/health", "/ready", "/metrics"):
            answer = await http.get(path)
            assert (answer.status == 401) is needs_key
            assert TOPIC.encode() not in answer.body
        assert TOPIC.encode() in (await http.get("/metrics", **ADMIN)).body
        assert TOPIC.encode() not in (await http.get("/metrics", **basic("mallory"))).body

    with_node(tmp_path, work, **CLOSED, metrics_need_key=needs_key, health_needs_key=needs_key)
