"""What a backup's file says is checked before it becomes the cluster's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronik.node import Node
from tests.unit.admin.support import Http, with_node


def user(**changes: Any) -> dict[str, Any]:
    credential = {
        "mechanism": "SCRAM-SHA-256",
        "salt": "c2FsdA==",
        "iterations": 8192,
        "stored_key": "a2V5",
        "server_key": "a2V5",
    }
    return {"users": [{"user": "ada", "credentials": [{**credential, **changes}]}]}


@pytest.mark.parametrize(
    "hostile",
    [
        {"broker_configs": {"min.insync.replicas": "none"}},
        {"broker_configs": {"log.dirs": "/elsewhere"}},
        {"group_configs": {"": {"consumer.session.timeout.ms": "45000"}}},
        {"group_configs": {"billing": {"consumer.session.timeout.ms": "soon"}}},
        {"next_producer_id": (1 << 63) - 1},
        user(iterations=(1 << 31) - 1),
        user(mechanism="SCRAM-SHA-1"),
        user(salt="c2Fs" * 500),
        {"quotas": [{"entity": [["user", "n" * 2_000]], "values": {"producer_byte_rate": 1.0}}]},
        {"quotas": [{"entity": [["user", "ada"]], "values": {"no_such_rate": 1.0}}]},
        {"acls": [{"resource_type": 2, "resource_name": "n" * 2_000, "principal": "User:a", "operation": 3}]},
    ],
    ids=lambda hostile: str(hostile)[:80],
)
def test_a_hostile_backup_changes_nothing(tmp_path: Path, hostile: dict[str, Any]) -> None:
    async def work(node: Node, http: Http) -> None:
        before = (await http.get("/admin/backup/metadata")).json
        refused = await http.post("/admin/restore/metadata", hostile)
        assert 400 <= refused.status < 500, refused.body
        assert (await http.get("/admin/backup/metadata")).json == before

    with_node(tmp_path, work)


def test_what_a_client_could_set_is_restored(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        shape = {**user(), "broker_configs": {"min.insync.replicas": "1"}, "next_producer_id": 5_000}
        assert (await http.post("/admin/restore/metadata", shape)).status == 200
        after = (await http.get("/admin/backup/metadata")).json
        assert [one["user"] for one in after["users"]] == ["ada"]
        assert after["broker_configs"] == {"min.insync.replicas": "1"}
        assert after["next_producer_id"] == 5_000

    with_node(tmp_path, work)
