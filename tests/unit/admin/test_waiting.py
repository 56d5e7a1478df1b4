"""A node that waits for a majority of its cluster says so over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chronik.config import Address, Peer, Settings
from chronik.node import Node
from chronik.testing import free_ports
from tests.unit.admin.support import HOST, Http

DEADLINE_S = 60


async def test_a_node_that_waits_for_its_quorum_is_alive_and_not_ready(tmp_path: Path) -> None:
    ports = iter(free_ports(12))

    def peer(number: int) -> Peer:
        kafka, wal, raft, http = (Address(HOST, next(ports)) for _ in range(4))
        return Peer(id=number, kafka=kafka, wal=wal, raft=raft, http=http)

    peers = tuple(peer(number) for number in (1, 2, 3))
    own = peers[0]
    assert own.http is not None
    settings = Settings(
        data_dir=tmp_path,
        kafka_port=own.kafka.port or 0,
        wal_port=own.wal.port or 0,
        raft_port=own.raft.port or 0,
        http_port=own.http.port or 0,
        peers=peers,
    )

    node = Node(settings)
    starting = asyncio.create_task(node.start())
    try:
        http = Http(settings.http_port)
        while not node.http_port:
            await asyncio.wait((starting,), timeout=0.01)
        async with asyncio.timeout(DEADLINE_S):
            alive = await http.get("/health")
            assert (alive.status, alive.json["status"]) == (200, "ok")
            ready = await http.get("/ready")
            assert (ready.status, ready.json["code"]) == (503, "not_ready")
            assert "a majority of nodes 1, 2, 3" in ready.json["message"]
            refused = await http.post("/admin/create-topic", {"name": "orders"})
            assert (refused.status, refused.json["message"]) == (503, ready.json["message"])
            assert (await http.get("/admin/raft-status")).json["leader_id"] == -1
            assert b"chronik_ready 0.0" in (await http.get("/metrics")).body
        assert not starting.done()
    finally:
        starting.cancel()
        await asyncio.wait((starting,))
        await node.stop()
