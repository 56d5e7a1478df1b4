"""HTTP on three closed nodes: they ask each other as themselves, whoever asked them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from chronik.metadata.levels import LEVEL_FIRST, LEVEL_LAST
from chronik.node import Node
from tests.security.test_closed_cluster import three
from tests.security.test_http_rights import basic
from tests.unit.admin.support import Http

ADMIN = basic("admin", "admin's password")


async def test_nodes_ask_each_other_and_hand_over_what_they_saw(tmp_path: Path) -> None:
    async with three(tmp_path) as nodes, asyncio.timeout(60):
        https = [Http(node.http_port) for node in nodes.values()]
        for number, http in enumerate(https):
            report = (await http.get("/admin/nodes", **ADMIN)).json["nodes"]
            assert [one["reachable"] for one in report] == [True] * 3, report
            assert (await http.get(f"/admin/topics/refused-by-{number}", **basic("nobody"))).status == 401
            assert (await http.get("/_node/indices")).status == 401
        body = {"name": "orders", "partitions": 3, "config": {"searchable": True}}
        assert (await https[0].post("/admin/create-topic", body, **ADMIN)).status == 200
        for partition in range(3):
            record = {"value": "found", "partition": partition}
            assert (await https[0].post("/admin/topics/orders/messages", record, **ADMIN)).status == 200
        found: dict[str, Any] = {"_shards": {"failed": 1}}
        async with asyncio.timeout(20):  # a process that connects without its login waits longer than that
            while found["_shards"]["failed"]:
                found = (await https[1].post("/orders/_search", {}, **ADMIN)).json
                await asyncio.sleep(0.1)
        assert found["hits"]["total"]["value"] == 3
        sql = {"query": "SELECT count(*) FROM orders"}
        assert (await https[1].post("/_sql", sql, **ADMIN)).json["rows"] == [[3]]
        # Its HTTP port and query processes have new keys then, which the others believe at once.
        await nodes[3].stop()
        nodes[3] = Node(nodes[3].settings)
        await nodes[3].start()
        record = {"value": "found"}
        assert (await https[2].post("/admin/topics/orders/messages", record, **ADMIN)).status == 200
        assert (await https[2].post("/_sql", sql, **ADMIN)).json["rows"] == [[4]]
        while True:
            entries = (await https[2].get("/admin/audit", **ADMIN)).json["entries"]
            refused = {one["node_id"] for one in entries if one["action"] == "GET" and not one["allowed"]}
            if refused == set(nodes):
                break
            await asyncio.sleep(0.1)


async def test_any_node_deletes_a_group_and_tells_the_levels_of_all(tmp_path: Path) -> None:
    """Whichever node coordinates the group: the HTTP port goes there as itself."""
    names = [f"readers-{number}" for number in range(6)]
    async with three(tmp_path) as nodes, asyncio.timeout(60):
        https = [Http(node.http_port) for node in nodes.values()]
        assert (await https[0].post("/admin/create-topic", {"name": "orders"}, **ADMIN)).status == 200
        for name in names:
            offsets = {"to": "earliest", "topics": [{"topic": "orders"}]}
            moved = await https[0].post(f"/admin/groups/{name}/offsets", offsets, **ADMIN)
            assert moved.status == 200, moved.body
        listed = (await https[1].get("/admin/groups", **ADMIN)).json["groups"]
        assert {one["group_id"] for one in listed} == set(names)
        assert len({one["coordinator"] for one in listed}) > 1
        for name in names:
            refused = await https[1].call("DELETE", f"/admin/groups/{name}", headers=basic("nobody"))
            assert refused.status == 401
            gone = await https[1].call("DELETE", f"/admin/groups/{name}", headers=ADMIN)
            assert gone.status == 200, gone.body
        assert (await https[2].get("/admin/groups", **ADMIN)).json["groups"] == []
        found = (await https[2].get("/admin/upgrade", **ADMIN)).json
        assert [one["node_id"] for one in found["nodes"]] == list(nodes)
        assert all(one["levels"] == [LEVEL_FIRST, LEVEL_LAST] for one in found["nodes"])
        assert (found["level"], found["can_finalize"]) == (LEVEL_LAST, False)
