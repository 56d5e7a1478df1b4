"""Three nodes of one cluster in this process, with whatever settings a test is about."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chronik.client import Admin, Cluster
from chronik.client.admin import NewTopic
from chronik.client.options import parse_bootstrap
from chronik.config import Address, Peer, Settings
from chronik.links.authority import make_certificates, node_files
from chronik.model import RequestError
from chronik.node import Node
from chronik.testing import free_ports
from tests.process import HOST

CLUSTER_ID = "orders"


def certificates(folder: Path, *nodes: int, cluster_id: str = CLUSTER_ID) -> Path:
    make_certificates(folder, cluster_id, nodes or (1, 2, 3), datetime.now(UTC), 2)
    return folder


def node_tls(folder: Path, node_id: int, **more: Any) -> dict[str, Any]:
    """Settings of a node with the certificates of this folder."""
    cert, key = node_files(folder, node_id)
    return {"node_tls_cert": cert, "node_tls_key": key, "node_tls_ca": folder / "ca.pem", **more}


def three_peers() -> tuple[Peer, ...]:
    ports = free_ports(12)
    return tuple(
        Peer(
            id=number,
            kafka=Address(HOST, ports[4 * number - 4]),
            wal=Address(HOST, ports[4 * number - 3]),
            raft=Address(HOST, ports[4 * number - 2]),
            http=Address(HOST, ports[4 * number - 1]),
        )
        for number in (1, 2, 3)
    )


def three_settings(folder: Path) -> dict[int, Settings]:
    peers = three_peers()
    return {
        peer.id: Settings(
            data_dir=folder / str(peer.id),
            node_id=peer.id,
            peers=peers,
            kafka_port=peer.kafka.port or 0,
            wal_port=peer.wal.port or 0,
            raft_port=peer.raft.port or 0,
            http_port=(peer.http or peer.kafka).port or 0,
            advertise=peer.kafka,
            default_replication_factor=3,
            min_insync_replicas=2,
            offsets_topic_partitions=3,
            transactions_topic_partitions=3,
            group_initial_rebalance_delay_ms=0,
            wal_file_bytes=1024 * 1024,
        )
        for peer in peers
    }


class Three:
    """Nodes 1, 2 and 3, which are restarted one after the other."""

    def __init__(self, folder: Path, given: Callable[[int], Mapping[str, Any]]) -> None:
        self.settings = three_settings(folder)
        self.nodes: dict[int, Node] = {}
        self._given = given

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{each.kafka_port}" for each in self.settings.values())

    async def start(self) -> None:
        self.nodes = {number: self._node(number) for number in self.settings}
        await asyncio.gather(*(node.start() for node in self.nodes.values()))

    def _node(self, number: int) -> Node:
        return Node(replace(self.settings[number], **self._given(number)), with_http=False)

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    async def restart(self, number: int, given: Callable[[int], Mapping[str, Any]] | None = None) -> None:
        """Stop a node in order and start it with these settings; returns when all is in sync."""
        self._given = given or self._given
        await self.nodes[number].stop()
        self.nodes[number] = self._node(number)
        await self.nodes[number].start()
        await self.in_sync()

    async def roll(self, given: Callable[[int], Mapping[str, Any]]) -> None:
        """A rolling restart."""
        for number in self.settings:
            await self.restart(number, given)

    async def in_sync(self) -> None:
        await until(self.is_in_sync)

    def is_in_sync(self) -> bool:
        states = [node.parts.metadata.state for node in self.nodes.values()]
        return all(
            len(state.live_brokers()) == len(self.nodes)
            and all(
                len(partition.isr) == len(partition.replicas)
                for topic in state.topics.values()
                for partition in topic.partitions
            )
            for state in states
        )

    async def create_topic(self, name: str, partitions: int = 3) -> None:
        async with Cluster(parse_bootstrap(self.bootstrap)) as cluster:
            (made,) = await Admin(cluster).create_topics([NewTopic(name=name, partitions=partitions)])
            assert not isinstance(made, RequestError), made


@contextlib.asynccontextmanager
async def three(folder: Path, given: Callable[[int], Mapping[str, Any]]) -> AsyncIterator[Three]:
    nodes = Three(folder, given)
    try:
        await nodes.start()
        yield nodes
    finally:
        await nodes.stop()


async def until(is_true: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
