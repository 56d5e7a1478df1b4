"""Simulated nodes to which nothing happens, for tests that need a cluster and exact times."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from chronik.client import Admin, Cluster
from chronik.client.admin import NewTopic
from chronik.config import Address, Peer, Settings
from chronik.sim.cluster import SimCluster
from chronik.sim.workload import PATIENT
from chronik.sim.world import World

LATENCY_SECONDS = 0.001


def settings(count: int, **more: Any) -> list[Settings]:
    hosts = {number: f"10.0.0.{number}" for number in range(1, count + 1)}
    peers = tuple(
        Peer(id=number, kafka=Address(host, 9092), wal=Address(host, 9291), raft=Address(host, 5001))
        for number, host in hosts.items()
    )
    return [
        Settings(
            node_id=number,
            data_dir=Path("/data"),
            bind=host,
            default_replication_factor=count,
            cluster_id="sim",
            cluster_secret="secret",
            peers=peers if count > 1 else (),
            **more,
        )
        for number, host in hosts.items()
    ]


class Quiet:
    """Nodes to which nothing happens, on a network where every message takes the same time."""

    def __init__(self, count: int, **more: Any) -> None:
        self.world = World(1)
        self.world.network._latency_s, self.world.network._jitter_s = LATENCY_SECONDS, 0.0
        self.cluster = SimCluster(self.world, settings(count, **more), on_started=lambda node: None)
        self.addresses = ",".join(f"{node.host}:{node.settings.kafka_port}" for node in self.cluster.nodes)
        self.hosts = 0

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something on a client's host of its own."""
        self.hosts += 1
        return self.world.loop.spawn(self.world.process(f"client{self.hosts}", f"10.0.1.{self.hosts}"), work)

    async def start(self) -> None:
        self.cluster.start([0.0] * len(self.cluster.nodes))
        await self.cluster.until(
            lambda: len(self.cluster.serving()) == len(self.cluster.nodes), "every node serves", 60.0
        )

    async def create(self, topic: NewTopic) -> None:
        await self.spawn(self._create(topic))
        await self.cluster.converge()

    async def _create(self, topic: NewTopic) -> None:
        async with Cluster(self.addresses, PATIENT) as cluster:
            (created,) = await Admin(cluster).create_topics([topic])
            assert not isinstance(created, Exception)


def hear(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> None:
    """Inside a running world, which keeps its log to itself: let the test see it."""
    logger = logging.getLogger("chronik")
    logger.addHandler(caplog.handler)
    logger.setLevel(level)
