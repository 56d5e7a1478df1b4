"""Client libraries and tools over SASL_SSL with ACLs, by every mechanism, on three nodes; one dies.

The nodes speak mutual TLS with each other. `--broker kafka` runs the same against Apache Kafka.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.errors import TopicAuthorizationFailedError as AioRefused
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

from chronik.security.acls import Operation, ResourceType
from tests import java
from tests.closed_cluster import BY_TOKEN, MECHANISMS, PASSWORD, WAYS, ClosedCluster, closed_cluster
from tests.node import SOURCE

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER, PRODUCER_OLD = "org.apache.kafka.tools.ConsoleProducer", "kafka.tools.ConsoleProducer"
ACLS_OLD, CONFIGS_OLD = "kafka.admin.AclCommand", "kafka.admin.ConfigCommand"
TOPICS = {"orders": 3, "secrets": 3, "one": 1}
RIGHTS = (
    (ResourceType.TOPIC, "orders", Operation.WRITE),
    (ResourceType.TOPIC, "orders", Operation.READ),
    (ResourceType.TOPIC, "one", Operation.WRITE),
    (ResourceType.TOPIC, "one", Operation.READ),
    (ResourceType.GROUP, "*", Operation.READ),
)


@pytest.fixture(scope="module")
def closed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClosedCluster]:
    folder = tmp_path_factory.mktemp("closed")
    with closed_cluster(folder, request.config.getoption("--broker"), TOPICS, RIGHTS) as given:
        yield given


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(closed: ClosedCluster, mechanism: str) -> None:
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
async def test_aiokafka(closed: ClosedCluster, mechanism: str) -> None:
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
def test_librdkafka(closed: ClosedCluster, mechanism: str) -> None:
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
def test_java(closed: ClosedCluster, jar_set: str, producer: str, writes: str, reads: str) -> None:
    how: dict[str, Any] = {"jar_set": jar_set, "options": closed.java_options()}
    where = ("--bootstrap-server", closed.bootstrap, "--topic", "orders")
    config = ("--producer.config", str(closed.properties(writes)))
    java.run(producer, *where, *config, stdin=f"{jar_set}\n", **how)
    config = ("--consumer.config", str(closed.properties(reads)), "--group", f"{jar_set}-{reads}")
    limits = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "30000")
    assert len(java.run(CONSUMER, *where, *config, *limits, **how).lines()) == 1


@pytest.mark.parametrize("way", WAYS)
def test_our_own_command_line(closed: ClosedCluster, way: str) -> None:
    properties = closed.properties(way)

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

    done = cli("produce", "orders", stdin=f"command line {way}\n")
    assert done.returncode == 0, done.stderr
    listed = cli("topic", "list")
    assert "orders" in listed.stdout
    assert "secrets" not in listed.stdout


def test_a_right_comes_and_goes_by_the_tools_of_3_9_under_a_client(closed: ClosedCluster) -> None:
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


def test_a_node_dies_under_all_of_them(closed: ClosedCluster) -> None:
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
    config = ("--producer.config", str(closed.properties(BY_TOKEN)), "--producer-property", "acks=all")
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
