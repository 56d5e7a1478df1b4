"""A session ends and the client logs in again on the same connection (KIP-368), with nothing failed (X02)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka import KafkaError
from confluent_kafka import Producer as ConfluentProducer

from chronik.server.connection import KafkaConnection
from tests.unit.server.test_login import address, closed

SESSION_MS = 1_000
SESSIONS = 3


async def test_librdkafka_logs_in_again_on_its_connection(tmp_path: Path) -> None:
    errors: list[KafkaError | None] = []
    async with closed(tmp_path, connections_max_reauth_ms=SESSION_MS) as node, asyncio.timeout(60):
        await node.topic("orders")
        producer = ConfluentProducer(
            {
                "bootstrap.servers": str(address(node)),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "password of alice",
                "linger.ms": 0,
            }
        )
        ends: dict[KafkaConnection, set[int]] = {}
        """When the sessions of each connection ended, or will."""
        while max(map(len, ends.values()), default=0) < SESSIONS:
            producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
            assert await asyncio.to_thread(producer.flush, 20) == 0
            for connection in node.node.parts.listener._connections:
                session = connection.peer.session
                if session is not None and session.principal == "User:alice" and session.expires_ms:
                    ends.setdefault(connection, set()).add(session.expires_ms)
        assert len(errors) >= SESSIONS
        assert set(errors) == {None}
