"""A session ends and the client logs in again on the same connection (KIP-368), with nothing failed (X02)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka import KafkaError
from confluent_kafka import Producer as ConfluentProducer

from chronik.model import TopicPartition
from chronik.server.connection import KafkaConnection
from tests import java
from tests.unit.server.live import Live
from tests.unit.server.test_login import address, closed

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"

SESSION_MS = 1_000
SESSIONS = 3


def sessions_of(node: Live, ends: dict[KafkaConnection, set[int]]) -> int:
    """Notes when the sessions of each of alice's connections ended, or will; the most that one has had."""
    for connection in node.node.parts.listener._connections:
        session = connection.peer.session
        if session is not None and session.principal == "User:alice" and session.expires_ms:
            ends.setdefault(connection, set()).add(session.expires_ms)
    return max(map(len, ends.values()), default=0)


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
        while sessions_of(node, ends) < SESSIONS:
            producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
            assert await asyncio.to_thread(producer.flush, 20) == 0
        assert len(errors) >= SESSIONS
        assert set(errors) == {None}


async def test_the_java_client_logs_in_again_on_its_connection(tmp_path: Path) -> None:
    async with closed(tmp_path, connections_max_reauth_ms=SESSION_MS) as node, asyncio.timeout(100):
        await node.topic("orders")
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        properties = tmp_path / "alice.properties"
        properties.write_text(
            f"""security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={module} required username="alice" password="password of alice";
retries=0
"""
        )
        where = ("--bootstrap-server", str(address(node)), "--topic", "orders", "--sync")
        producer = await asyncio.create_subprocess_exec(
            *java.command(PRODUCER, *where, "--producer.config", str(properties)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert producer.stdin is not None
        ends: dict[KafkaConnection, set[int]] = {}
        written, log = 0, node.node.parts.replicas.leader(TopicPartition("orders", 0)).log
        try:
            while sessions_of(node, ends) < SESSIONS:
                producer.stdin.write(b"x\n")
                written += 1
                while log.log_end_offset < written:
                    sessions_of(node, ends)
                    assert producer.returncode is None
                    await asyncio.sleep(0.02)
            said = (await producer.communicate(b""))[1]
        finally:
            if producer.returncode is None:
                producer.kill()
        assert producer.returncode == 0, said
        assert log.log_end_offset == written
