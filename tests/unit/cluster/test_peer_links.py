"""Whom a node dials, and says that it dials: everybody in its configuration but itself, for every purpose
(S01, T04)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from chronik.cluster.peer_links import DATA, PeerAddress, PeerLinks
from chronik.cluster.transport import METADATA, RAFT
from chronik.links.handshake import LinkIdentity
from chronik.links.link import Link
from chronik.metadata.state import ClusterState


class Silent:
    def on_open(self, link: Link) -> None: ...
    def on_closed(self, link: Link) -> None: ...
    def on_writable(self, link: Link) -> None: ...
    def on_frame(self, link: Link, frame: memoryview) -> None: ...


def links_of_node_1(configured: Mapping[int, PeerAddress]) -> PeerLinks:
    return PeerLinks(
        identity=LinkIdentity(1, (b"secret",), bytes),
        configured=configured,
        handlers=dict.fromkeys((RAFT, METADATA, DATA), Silent()),
        state=ClusterState,
        quorum=lambda: (1, 2, 3),
        on_refused=lambda _node_id, _seconds: None,
        rng=random.Random(1),
    )


async def test_the_log_says_who_was_found_for_data_and_for_metadata(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ports = {1: 9291, 2: 9292, 3: 9293}
    places = {
        node_id: PeerAddress(("localhost", port), ("localhost", port + 1)) for node_id, port in ports.items()
    }
    links = links_of_node_1(places)
    links.start()
    await links.stop()
    found = [
        (record.name.rpartition(".")[2], record.levelno, record.getMessage())
        for record in caplog.records
        if "discovered" in record.getMessage()
    ]
    line = (
        "Auto-discovered 2 followers from cluster config (excluding self node 1): "
        "localhost:9292, localhost:9293"
    )
    assert found == [("data_stream", logging.INFO, line), ("metadata_stream", logging.INFO, line)]


async def test_every_configured_peer_is_dialed_for_data_metadata_and_raft() -> None:
    came: Counter[tuple[int, str]] = Counter()
    servers: list[asyncio.Server] = []
    changed = asyncio.Event()

    async def listen(node_id: int, port: str) -> tuple[str, int]:
        async def arrived(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came[node_id, port] += 1
            changed.set()
            writers.append(writer)

        server = await asyncio.start_server(arrived, "127.0.0.1", 0)
        servers.append(server)
        host, number = server.sockets[0].getsockname()
        return str(host), int(number)

    writers: list[asyncio.StreamWriter] = []
    configured = {
        node_id: PeerAddress(await listen(node_id, "wal"), await listen(node_id, "raft"))
        for node_id in (1, 2, 3)
    }
    links = links_of_node_1(configured)
    links.start()
    try:
        async with asyncio.timeout(30):
            while sum(came.values()) < 6:
                changed.clear()
                await changed.wait()
    finally:
        await links.stop()
        for writer in writers:
            writer.close()
        for server in servers:
            server.close()
    assert came == {(2, "wal"): 2, (2, "raft"): 1, (3, "wal"): 2, (3, "raft"): 1}
