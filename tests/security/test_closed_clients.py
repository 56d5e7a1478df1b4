"""Client libraries and tools over SASL_SSL with ACLs, by every mechanism, on three nodes; one dies.

The nodes speak mutual TLS with each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.errors import TopicAuthorizationFailedError as AioRefused
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError
from confluent_kafka import Producer as ConfluentProducer
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

from chronik.client import Admin, ClientOptions
from chronik.client import Cluster as ClientCluster
from chronik.client.admin import NewTopic
from chronik.client.security import create_acls, put_user
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.testing import Cluster, free_ports
from tests import java
from tests.node import SOURCE
from tests.process import HOST
from tests.security.nodes import certificates, node_tls
from tests.tls import make_certificate

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PASSWORD = "alice's password"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER, PRODUCER_OLD = "org.apache.kafka.tools.ConsoleProducer", "kafka.tools.ConsoleProducer"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
ACLS_OLD, CONFIGS_OLD = "kafka.admin.AclCommand", "kafka.admin.ConfigCommand"
EXPIRES_S = 4_000_000_000


@dataclass(frozen=True)
class Closed:
    cluster: Cluster
    folder: Path
    ports: dict[int, int]
    cert: Path
    token: str

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def python_options(self, mechanism: str) -> dict[str, Any]:
        """For kafka-python and aiokafka, but for how they take a token and a certificate."""
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            **(
                {}
                if mechanism == "OAUTHBEARER"
                else {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
            ),
        }

    def librdkafka_options(self, mechanism: str, user: str = "alice", **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.cert),
            "sasl.mechanisms": mechanism,
            **(
                {"oauth_cb": lambda _: (self.token, EXPIRES_S)}
                if mechanism == "OAUTHBEARER"
                else {"sasl.username": user, "sasl.password": PASSWORD}
            ),
            **more,
        }

    def properties(
        self, mechanism: str, user: str = "alice", password: str = PASSWORD, more: str = ""
    ) -> Path:
        path = self.folder / f"{user}-{mechanism}.properties"
        login = {
            "PLAIN": "plain.PlainLoginModule",
            "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
        }.get(mechanism, "scram.ScramLoginModule")
        who = "" if mechanism == "OAUTHBEARER" else f' username="{user}" password="{password}"{more}'
        lines = [
            "security.protocol=SASL_SSL",
            f"sasl.mechanism={mechanism}",
            f"sasl.jaas.config=org.apache.kafka.common.security.{login} required{who};",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.cert}",
        ]
        if mechanism == "OAUTHBEARER":
            handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            lines += [
                f"sasl.login.callback.handler.class={handler}",
                f"sasl.oauthbearer.token.endpoint.url={self.token_url}",
                f"sasl.oauthbearer.token={self.token}",  # chronik's own client reads it from here
            ]
        path.write_text("\n".join(lines) + "\n")
        return path

    def delegation_token(self) -> Path:
        """Properties of a login by a token that Apache Kafka's tool made for alice."""
        config = ("--command-config", str(self.properties("SCRAM-SHA-512")))
        wanted = ("--create", "--max-life-time-period", "-1", "--bootstrap-server", self.bootstrap)
        made = java.run(TOKENS, *wanted, *config).out
        found = re.search(r"^(\S+)\s+(\S+={0,2})\s+User:alice", made, re.MULTILINE)
        assert found is not None, made
        return self.properties("SCRAM-SHA-256", found[1], found[2], ' tokenauth="true"')

    @property
    def token_url(self) -> str:
        path = self.folder / "token.jwt"
        path.write_text(self.token)
        return path.as_uri()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    folder = tmp_path_factory.mktemp("closed")
    cert, key = make_certificate(folder)
    signer = rsa.generate_private_key(65537, 2048)
    document = RSAAlgorithm.to_jwk(signer.public_key(), as_dict=True) | {"alg": "RS256", "kid": "one"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [document]}))
    claims = {"sub": "alice", "aud": "chronik", "scope": "any", "iat": 1_700_000_000, "exp": EXPIRES_S}
    token = jwt.encode(claims, signer, "RS256", headers={"kid": "one"})
    cluster = Cluster(
        nodes=3,
        can_partition=False,
        listener_security_protocol_map="CLIENTS:SASL_SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=key,
        sasl_enabled_mechanisms=",".join(MECHANISMS),
        sasl_oauthbearer_jwks=folder / "jwks.json",
        sasl_oauthbearer_expected_audience="chronik",
        authorizer=True,
        super_users="User:ANONYMOUS;User:admin",
        env={
            "CHRONIK_CLUSTER_SECRET": "what the nodes know",
            "CHRONIK_DELEGATION_TOKEN_SECRET_KEY": "what tokens are made with",
        },
    )
    certificates(folder / "nodes")
    ports = dict(zip(cluster.nodes, free_ports(3), strict=True))
    try:
        for node, port in ports.items():
            files = {
                f"CHRONIK_{name.upper()}": str(path)
                for name, path in node_tls(folder / "nodes", node).items()
            }
            cluster.start(node, env={"CHRONIK_LISTENERS": f"CLIENTS://{HOST}:{port}", **files}, wait=False)
        cluster.wait_ready()
        cluster.run(_prepare(cluster.bootstrap))
        yield Closed(cluster, folder, ports, cert, token)
    finally:
        cluster.close()


async def _prepare(bootstrap: Any) -> None:
    rights = (
        (ResourceType.TOPIC, "orders", Operation.WRITE),
        (ResourceType.TOPIC, "orders", Operation.READ),
        (ResourceType.TOPIC, "one", Operation.WRITE),
        (ResourceType.TOPIC, "one", Operation.READ),
        (ResourceType.GROUP, "*", Operation.READ),
    )
    async with ClientCluster(bootstrap, ClientOptions()) as cluster:
        for user in ("alice", "admin"):
            await put_user(cluster, user, PASSWORD)
        await Admin(cluster).create_topics(
            [NewTopic(name=name, partitions=3) for name in ("orders", "secrets")]
            + [NewTopic(name="one", partitions=1)]
        )
        await create_acls(
            cluster,
            [
                AclBinding(
                    resource_type=kind, resource_name=name, principal="User:alice", operation=operation
                )
                for kind, name, operation in rights
            ],
        )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(closed: Closed, mechanism: str) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return closed.token

    options = closed.python_options(mechanism) | {"ssl_cafile": str(closed.cert)}
    if mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = Tokens()
    value = f"kafka-python {mechanism}".encode()
    producer = KafkaProducer(**options)
    producer.send("orders", value).get(30)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("secrets", b"x").get(30)
    producer.close()
    consumer = KafkaConsumer(
        "orders",
        group_id=f"kafka-python-{mechanism}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
        **options,
    )
    assert any(record.value == value for record in consumer)
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka(closed: Closed, mechanism: str) -> None:
    class Tokens(AioTokens):
        async def token(self) -> str:
            return closed.token

    options = closed.python_options(mechanism)
    options["ssl_context"] = ssl.create_default_context(cafile=str(closed.cert))
    if mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = Tokens()
    value = f"aiokafka {mechanism}".encode()
    async with AIOKafkaProducer(**options) as producer:
        await producer.send_and_wait("orders", value)
        with pytest.raises(AioRefused):
            await producer.send_and_wait("secrets", b"x")
    group = f"aiokafka-{mechanism}"
    async with (
        AIOKafkaConsumer("orders", group_id=group, auto_offset_reset="earliest", **options) as consumer,
        asyncio.timeout(30),
    ):
        async for record in consumer:
            if record.value == value:
                break


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(closed: Closed, mechanism: str) -> None:
    results: dict[str, KafkaError | None] = {}
    value = f"librdkafka {mechanism}".encode()
    producer = ConfluentProducer(closed.librdkafka_options(mechanism))
    for topic in ("orders", "secrets"):
        producer.produce(
            topic, value, on_delivery=lambda error, message: results.update({message.topic(): error})
        )
    assert producer.flush(30) == 0
    assert results["orders"] is None
    assert (refused := results["secrets"]) is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    reading = {"group.id": f"librdkafka-{mechanism}", "auto.offset.reset": "earliest"}
    consumer = ConfluentConsumer(closed.librdkafka_options(mechanism, **reading))
    consumer.subscribe(["orders"])
    while True:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        if message.value() == value:
            break
    consumer.close()


@pytest.mark.parametrize(("writes", "reads"), [("PLAIN", "OAUTHBEARER"), ("SCRAM-SHA-256", "SCRAM-SHA-512")])
@pytest.mark.parametrize(("jar_set", "producer"), [("kafka", PRODUCER), ("kafka-3.9", PRODUCER_OLD)])
def test_java(closed: Closed, jar_set: str, producer: str, writes: str, reads: str) -> None:
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={closed.token_url}"
    how: dict[str, Any] = {"jar_set": jar_set, "options": (*java.TOOL_OPTIONS, allowed)}
    where = ("--bootstrap-server", closed.bootstrap, "--topic", "orders")
    config = ("--producer.config", str(closed.properties(writes)))
    java.run(producer, *where, *config, stdin=f"{jar_set}\n", **how)
    config = ("--consumer.config", str(closed.properties(reads)), "--group", f"{jar_set}-{reads}")
    limits = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "30000")
    assert len(java.run(CONSUMER, *where, *config, *limits, **how).lines()) == 1


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "a delegation token"])
def test_our_own_command_line(closed: Closed, mechanism: str) -> None:
    properties = closed.properties(mechanism) if mechanism in MECHANISMS else closed.delegation_token()

    def cli(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        program = (sys.executable, "-c", "from chronik.cli import main; main()")
        config = ("--client-config", str(properties))
        return subprocess.run(
            [*program, *config, *arguments, "--bootstrap", closed.bootstrap],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            check=False,
        )

    done = cli("produce", "orders", stdin=f"command line {mechanism}\n")
    assert done.returncode == 0, done.stderr
    listed = cli("topic", "list")
    assert "orders" in listed.stdout
    assert "secrets" not in listed.stdout


def test_a_right_comes_and_goes_by_the_tools_of_3_9_under_a_client(closed: Closed) -> None:
    """kafka-configs makes a user, kafka-acls gives it a right and takes it away; a client that is connected
    throughout feels it with its next request."""
    admin = ("--bootstrap-server", closed.bootstrap, "--command-config")
    config = (*admin, str(closed.properties("PLAIN", "admin")))
    user = ("--entity-type", "users", "--entity-name", "dora")
    password = f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"
    java.run(CONFIGS_OLD, *config, "--alter", *user, "--add-config", password, jar_set="kafka-3.9")
    right = ("--allow-principal", "User:dora", "--operation", "Write", "--topic", "secrets")
    java.run(ACLS_OLD, *config, "--add", *right, jar_set="kafka-3.9")
    producer = ConfluentProducer(closed.librdkafka_options("SCRAM-SHA-512", "dora"))

    def sent() -> int | None:
        results: list[KafkaError | None] = []
        producer.produce("secrets", b"x", partition=0, on_delivery=lambda error, _: results.append(error))
        assert producer.flush(30) == 0
        return None if results[0] is None else results[0].code()

    assert [sent(), sent()] == [None, None]
    java.run(ACLS_OLD, *config, "--remove", "--force", *right, jar_set="kafka-3.9")
    assert sent() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_node_dies_under_all_of_them(closed: Closed) -> None:
    """Each client has sent something, then a leader is gone; whatever they send afterwards arrives. The Java
    client is one that logged in with a delegation token."""
    options = closed.python_options("SCRAM-SHA-256") | {"ssl_cafile": str(closed.cert)}
    python = KafkaProducer(**options, acks="all", retries=50)
    errors: list[KafkaError | None] = []
    confluent = ConfluentProducer(closed.librdkafka_options("SCRAM-SHA-512", acks="all"))

    def confluent_send(partition: int) -> None:
        confluent.produce(
            "orders", b"after", partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
        assert confluent.flush(60) == 0

    async def aio_started() -> AIOKafkaProducer:
        context = ssl.create_default_context(cafile=str(closed.cert))
        producer = AIOKafkaProducer(**closed.python_options("PLAIN"), ssl_context=context, acks="all")
        await producer.start()
        return producer

    def aio_send(partition: int) -> None:
        loop.run(asyncio.wait_for(aio.send_and_wait("orders", b"after", partition=partition), 60))

    loop = asyncio.Runner()
    aio = loop.run(aio_started())

    def python_send(partition: int) -> None:
        python.send("orders", b"after", partition=partition).get(60)

    arguments = ("--bootstrap-server", closed.bootstrap, "--topic", "one", "--sync")
    config = ("--producer.config", str(closed.delegation_token()), "--producer-property", "acks=all")
    written = subprocess.Popen(
        java.command(PRODUCER, *arguments, *config),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    reading = {"group.id": "of java", "auto.offset.reset": "earliest"}
    reader = ConfluentConsumer(closed.librdkafka_options("SCRAM-SHA-256", **reading))
    reader.subscribe(["one"])
    assert written.stdin is not None
    senders: tuple[Callable[[int], None], ...] = (python_send, confluent_send, aio_send)
    try:
        written.stdin.write(b"before\n")
        written.stdin.flush()
        assert next_value(reader) == b"before"
        for send in senders:
            for partition in range(3):
                send(partition)
        closed.cluster.kill(closed.cluster.leader_of("one", 0))
        said = written.communicate(b"after\nall\n", timeout=90)[1]
        for send in senders:
            for partition in range(3):
                send(partition)
        assert [next_value(reader), next_value(reader)] == [b"after", b"all"], said.decode()[-2000:]
    finally:
        written.kill()
        written.wait()
        reader.close()
        python.close()
        loop.run(aio.stop())
        loop.close()
    assert errors == [None] * 6


def next_value(consumer: ConfluentConsumer) -> bytes:
    """Of the next record. Errors of a connection that broke are passed over: the client finds another."""
    for _ in range(60):
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            return bytes(message.value())
    raise AssertionError("there is no further record")
