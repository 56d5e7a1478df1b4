"""Every API under every right, as in Apache Kafka; `--broker kafka` holds that to the same table (X03)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.client import ClientOptions, Cluster
from chronik.client.options import parse_bootstrap
from chronik.client.security import put_user
from chronik.testing import free_ports
from tests.apache import ApacheKafka
from tests.node import ChronikNode
from tests.process import HOST, ServerProcess
from tests.security.rights import LOGIN, Walk, read_table, write_table

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


async def test_every_api_under_every_right(walk: Walk, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--broker") == "chronik":
        where = parse_bootstrap(f"{HOST}:{walk.admin_port}")
        async with Cluster(where, ClientOptions()) as cluster:
            await put_user(cluster, LOGIN.user, LOGIN.password)
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
