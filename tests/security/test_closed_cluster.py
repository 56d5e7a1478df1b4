"""Three nodes that serve nobody without a login, their own clients included."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from chronik.client import Admin, ClientOptions, Cluster
from chronik.client.admin import NewTopic
from chronik.client.apis import METADATA
from chronik.client.connection import Connection
from chronik.client.login import Login
from chronik.client.options import BrokerAddress, parse_bootstrap
from chronik.client.retry import Unanswered, Unreachable
from chronik.client.security import create_acls, put_user
from chronik.config import Settings
from chronik.links.handshake import NodeKey
from chronik.metadata.commands import BROKER_RESOURCE, RemoveNode, SetConfigs
from chronik.model import RequestError
from chronik.node import Node
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.security.scram import Sign
from chronik.server import listener
from chronik.server.first_user import write_first_user
from chronik.server.own_clients import HTTP_USER, QUERY_USER, own_password
from chronik.server.tls import client_context
from tests.process import HOST
from tests.security.nodes import three_peers
from tests.tls import make_certificate

SECRET = "what the nodes know"


@contextlib.asynccontextmanager
async def three(folder: Path) -> AsyncIterator[dict[int, Node]]:
    cert, key = make_certificate(folder)
    peers = three_peers()
    nodes = {}
    for peer in peers:
        assert peer.http is not None
        settings = Settings(
            data_dir=folder / str(peer.id),
            node_id=peer.id,
            peers=peers,
            kafka_port=peer.kafka.port or 0,
            wal_port=peer.wal.port or 0,
            raft_port=peer.raft.port or 0,
            http_port=peer.http.port or 0,
            advertise=peer.kafka,
            listener_security_protocol_map="KAFKA:SASL_SSL",
            kafka_tls_cert=cert,
            kafka_tls_key=key,
            cluster_secret=SECRET,
            authorizer=True,
            default_replication_factor=3,
            min_insync_replicas=2,
            offsets_topic_partitions=3,
            transactions_topic_partitions=3,
            group_initial_rebalance_delay_ms=0,
        )
        nodes[peer.id] = Node(settings)
    write_first_user(folder / "1", "admin", "admin's password")
    try:
        await asyncio.gather(*(node.start() for node in nodes.values()))
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.values()))


def bootstrap(nodes: dict[int, Node]) -> str:
    return ",".join(f"{HOST}:{node.settings.kafka_port}" for node in nodes.values())


async def test_transactions_groups_and_failover(tmp_path: Path) -> None:
    async with three(tmp_path) as nodes, asyncio.timeout(120):
        cert = nodes[1].settings.kafka_tls_cert
        login = Login(mechanism="SCRAM-SHA-512", user="admin", password="admin's password")
        options = ClientOptions(tls=client_context(cert), login=login, deadline_ms=60_000)
        async with Cluster(parse_bootstrap(bootstrap(nodes)), options) as cluster:
            await put_user(cluster, "alice", "alice's password")
            (made,) = await Admin(cluster).create_topics([NewTopic(name="orders", partitions=6)])
            assert not isinstance(made, RequestError)
            rights = (
                (ResourceType.TOPIC, "orders", Operation.WRITE),
                (ResourceType.TOPIC, "orders", Operation.READ),
                (ResourceType.GROUP, "readers", Operation.READ),
                (ResourceType.TRANSACTIONAL_ID, "writer", Operation.WRITE),
            )
            bindings = [
                AclBinding(
                    resource_type=kind, resource_name=name, principal="User:alice", operation=operation
                )
                for kind, name, operation in rights
            ]
            await create_acls(cluster, bindings)
        given = {
            "bootstrap_servers": bootstrap(nodes),
            "security_protocol": "SASL_SSL",
            "ssl_context": client_context(cert),
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "alice's password",
        }
        async with AIOKafkaProducer(**given, transactional_id="writer", acks="all") as producer:
            # Partitions on every node: the coordinator writes its markers through the others' listeners.
            for batch in range(4):
                if batch == 2:
                    await nodes[3].stop()
                async with producer.transaction():
                    for partition in range(6):
                        await producer.send("orders", f"{batch}".encode(), partition=partition)
        consumer = AIOKafkaConsumer(
            "orders",
            group_id="readers",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **given,
        )
        async with consumer:
            seen = [(await consumer.getone()).value for _ in range(24)]
        assert sorted(seen) == [b"0"] * 6 + [b"1"] * 6 + [b"2"] * 6 + [b"3"] * 6


async def test_a_limit_that_is_too_low_keeps_no_node_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on the only listener either: nodes are known by the addresses that their links come from."""
    monkeypatch.setattr(listener, "is_of_this_machine", lambda *_: False)
    async with three(tmp_path) as nodes, contextlib.AsyncExitStack() as stack, asyncio.timeout(60):
        too_low = SetConfigs(resource_type=BROKER_RESOURCE, name="", values={"max.connections": "1"})
        await nodes[1].parts.metadata.submit(too_low)

        async def is_taken(own_host: str) -> bool:
            """Whether one more connection from this address is taken."""
            port = nodes[1].settings.kafka_port
            tls = client_context(nodes[1].settings.kafka_tls_cert)
            try:
                _, writer = await asyncio.open_connection(HOST, port, ssl=tls, local_addr=(own_host, 0))
            except OSError:
                return False
            stack.callback(writer.close)
            return True

        assert [await is_taken(HOST) for _ in range(3)] == [True] * 3
        assert not await is_taken("127.0.0.9"), "a client elsewhere"
        assert nodes[1].parts.listener.stats.refused["max"] == 1


@pytest.mark.parametrize("secret", ["guessed", ""])
async def test_a_stranger_does_not_pass_for_a_node(tmp_path: Path, secret: str) -> None:
    async with three(tmp_path) as nodes, asyncio.timeout(60):
        cert = nodes[1].settings.kafka_tls_cert
        login = Login(mechanism="CHRONIK-NODE", user="2", password=secret)
        options = ClientOptions(tls=client_context(cert), login=login, deadline_ms=5_000)
        with pytest.raises(RequestError):
            async with Cluster(parse_bootstrap(bootstrap(nodes)), options) as cluster:
                await cluster.probe()


async def test_the_secret_alone_does_not_pass_for_a_node(tmp_path: Path) -> None:
    """A registered node has a key of its own, which the holder of the secret has not."""
    async with three(tmp_path) as nodes, asyncio.timeout(60):
        cert = nodes[1].settings.kafka_tls_cert

        async def tried(user: int | str, sign: Sign | None, password: str = SECRET) -> None:
            login = Login(mechanism="CHRONIK-NODE", user=str(user), password=password, sign=sign)
            options = ClientOptions(tls=client_context(cert), login=login, deadline_ms=5_000)
            async with Cluster(parse_bootstrap(bootstrap(nodes)), options) as cluster:
                await cluster.probe()

        assert nodes[2].parts.links.sign is not None
        await tried(2, nodes[2].parts.links.sign)
        for sign in (None, NodeKey(b"x" * 32).sign, nodes[3].parts.links.sign):
            with pytest.raises(RequestError):
                await tried(2, sign)
            for user in (HTTP_USER, QUERY_USER):
                with pytest.raises(RequestError):
                    await tried(user, sign, own_password(SECRET, user))


async def test_what_a_node_opened_ends_with_its_registration(tmp_path: Path) -> None:
    """Connections of a node that was removed are closed, and those of clients of an earlier start of it:
    what leaked from a process ends with it, also where somebody holds a connection open."""
    async with three(tmp_path) as nodes, contextlib.AsyncExitStack() as stack, asyncio.timeout(90):
        where = BrokerAddress(HOST, nodes[1].settings.kafka_port)
        security = nodes[2].parts.security

        async def opened(login: Login | None) -> Connection:
            assert login is not None
            tls = client_context(nodes[1].settings.kafka_tls_cert)
            connection = await Connection.open(where, ClientOptions(tls=tls, login=login))
            stack.callback(connection.close)
            await connection.request(METADATA, {"topics": None})
            return connection

        async def ends(connection: Connection) -> None:
            with contextlib.suppress(Unanswered, Unreachable):
                while True:
                    await connection.request(METADATA, {"topics": None})

        as_node, as_http = await opened(security.own_login), await opened(security._own_clients.http_login())
        other = await opened(nodes[3].parts.security.own_login)
        settings = nodes[2].settings
        await nodes[2].stop()
        nodes[2] = Node(settings)
        await nodes[2].start()
        await ends(as_http)
        await as_node.request(METADATA, {"topics": None})
        await nodes[1].parts.metadata.submit(RemoveNode(broker_id=2, force=True))
        await ends(as_node)
        await other.request(METADATA, {"topics": None})
