"""Every API under every right, as in Apache Kafka; `--broker kafka` holds that to the same table (X03)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.client import ClientOptions, Cluster
from chronik.client.connection import Connection
from chronik.client.options import parse_bootstrap
from chronik.client.security import put_user
from chronik.model import ErrorCode
from chronik.security.acls import Operation, ResourceType
from chronik.testing import free_ports
from chronik.wire.api import ApiKey
from tests.apache import ApacheKafka
from tests.node import ChronikNode
from tests.process import HOST, ServerProcess
from tests.security.rights import LOGIN, Walk, ask, read_table, write_table

SUPER = "User:admin;User:ANONYMOUS"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
KEY = "what signs delegation tokens"


@pytest.fixture(scope="module")
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("rights")
    (port,) = free_ports(1)
    is_apache = request.config.getoption("--broker") == "kafka"
    server: ServerProcess = _apache(folder, port) if is_apache else _chronik(folder, port)
    with server:
        yield Walk(server.kafka_port, port)
        server.stop()


def _chronik(folder: Path, port: int) -> ChronikNode:
    return ChronikNode(
        folder,
        listeners=f"CLIENTS://{HOST}:{port}",
        listener_security_protocol_map="CLIENTS:SASL_PLAINTEXT",
        sasl_enabled_mechanisms="PLAIN",
        authorizer=True,
        super_users=SUPER,
        env={"CHRONIK_DELEGATION_TOKEN_SECRET_KEY": KEY},
        default_partitions=1,
    )


def _apache(folder: Path, port: int) -> ApacheKafka:
    server = ApacheKafka(folder)
    text = server.properties.read_text()
    (listeners,) = [line for line in text.splitlines() if line.startswith("listeners=")]
    users = f'user_{LOGIN.user}="{LOGIN.password}"'
    text = text.replace(listeners, f"{listeners},CLIENTS://{HOST}:{port}").replace(
        "advertised.listeners=", f"advertised.listeners=CLIENTS://{HOST}:{port},"
    )
    server.properties.write_text(
        text
        + f"""listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.clients.plain.sasl.jaas.config={MODULE} required {users};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users={SUPER}
delegation.token.secret.key={KEY}
"""
    )
    return server


async def prepare_user(walk: Walk, request: pytest.FixtureRequest) -> None:
    """Apache Kafka has him in its configuration."""
    if request.config.getoption("--broker") == "chronik":
        where = parse_bootstrap(f"{HOST}:{walk.admin_port}")
        async with Cluster(where, ClientOptions()) as cluster:
            await put_user(cluster, LOGIN.user, LOGIN.password)


async def test_every_api_under_every_right(walk: Walk, request: pytest.FixtureRequest) -> None:
    await prepare_user(walk, request)
    found = await walk.outcomes()
    if request.config.getoption("--write-rights"):
        write_table(found)
    expected = read_table()
    differences = [
        f"{state}: {case}: {found[state, case]}, expected {expected[state, case]}"
        for state, case in expected
        if found[state, case] != expected[state, case]
    ]
    assert not differences, "\n".join(differences)


async def test_groups_show_topics_to_those_who_may_describe_them(
    walk: Walk, request: pytest.FixtureRequest
) -> None:
    """A pattern matches what its member may describe; a group that reads anything else is not described."""
    await prepare_user(walk, request)
    admin, mallory = await walk.connections()
    both = {"pattern-hers", "pattern-open"}
    new = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in sorted(both)]
    made = await ask(admin, ApiKey.CREATE_TOPICS, 7, topics=new, timeout=10_000)
    ids = {topic.topic_id: topic.name for topic in made.topics}
    await walk.allow(
        admin,
        [
            (Operation.READ, ResourceType.GROUP, "*"),
            (Operation.DESCRIBE, ResourceType.TOPIC, "pattern-open"),
        ],
    )

    async def joined(connection: Connection, group: str, topics: set[str]) -> None:
        """Returns when the only member has partitions of these topics."""
        first = {"rebalance_timeout": 30_000, "subscribed_topic_regex": "pattern-.*", "topic_partitions": []}
        epoch, told, fields = 0, set(), first
        async with asyncio.timeout(60):
            while told != topics:
                beat = await ask(
                    connection,
                    ApiKey.CONSUMER_GROUP_HEARTBEAT,
                    1,
                    **{"group_id": group, "member_id": "m", "member_epoch": epoch, **fields},
                )
                epoch, fields = beat.member_epoch, {}
                if beat.error_code in (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator):
                    epoch, fields = 0, first
                    continue
                assert beat.error_code == ErrorCode.none, beat
                if beat.assignment is not None:
                    told = {ids[one.topic_id] for one in beat.assignment.topic_partitions}
                assert told <= topics, told

    async def described(group: str) -> tuple[ErrorCode, int]:
        wanted = {"group_ids": [group], "include_authorized_operations": True}
        (found,) = (await ask(mallory, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, **wanted)).groups
        assert ("pattern-hers" in repr(found)) is False
        assert (found.authorized_operations < 0) is (found.error_code != ErrorCode.none)
        return found.error_code, len(found.members)

    await joined(admin, "of-admin", both)
    await joined(mallory, "of-mallory", {"pattern-open"})
    assert await described("of-mallory") == (ErrorCode.none, 1)
    assert await described("of-admin") == (ErrorCode.topic_authorization_failed, 0)
    admin.close()
    mallory.close()
