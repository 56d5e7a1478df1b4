"""A whole node in this process, asked through its dispatcher: requests as bytes, no sockets of our own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from chronik.config import Settings
from chronik.metadata.commands import BROKER_RESOURCE, CreateTopic, SetConfigs
from chronik.node import Node
from chronik.server.dispatch import Connection
from chronik.storage.disk import Disk
from chronik.wire.api import ApiKey, parse_request_header
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.harness import answer


class Live:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection = Connection(peer_host="10.0.0.9", listener_host="127.0.0.1", listener_port=9092)

    async def call(self, api_key: ApiKey, version: int, **fields: Any) -> Any:
        frame = encode_request(api_key, version, 7, "tester", fields)
        header, offset = parse_request_header(frame, 4)
        found = await answer(self.node.parts.dispatcher, header, frame, offset, self.connection)
        assert found is not None
        return decode_response(api_key, version, found, 4)[1]

    async def topic(self, name: str, partitions: int = 1) -> None:
        parts = self.node.parts
        assignments = tuple((self.node.settings.node_id,) for _ in range(partitions))
        await parts.metadata.submit(
            CreateTopic(name=name, topic_id=parts.services.new_uuid(), assignments=assignments)
        )

    async def set_broker_config(self, name: str, value: str) -> None:
        """For all brokers."""
        change = SetConfigs(resource_type=BROKER_RESOURCE, name="", values={name: value})
        await self.node.parts.metadata.submit(change)

    async def find(self, key: str, key_type: int = 0) -> None:
        """Makes the internal topic, as a client's first request does."""
        found = await self.call(ApiKey.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[key])
        assert found.coordinators[0].error_code == 0


@contextlib.asynccontextmanager
async def live(
    folder: Path, *, now_ms: Callable[[], int] | None = None, disk: Disk | None = None, **settings: Any
) -> AsyncIterator[Live]:
    given = Settings(
        data_dir=folder,
        **{
            "kafka_port": 0,
            "http_port": 0,
            "wal_port": 0,
            "raft_port": 0,
            "offsets_topic_partitions": 2,
            "transactions_topic_partitions": 2,
            "group_initial_rebalance_delay_ms": 0,
            **settings,
        },
    )
    node = Node(given, disk=disk) if now_ms is None else Node(given, disk=disk, now_ms=now_ms)
    async with asyncio.timeout(60):
        await node.start()
        try:
            yield Live(node)
        finally:
            await node.stop()
