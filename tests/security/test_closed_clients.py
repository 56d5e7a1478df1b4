"""Client libraries and tools over SASL_SSL with ACLs, by every mechanism, on three nodes; one dies.

The nodes speak mutual TLS with each other. `--broker kafka` runs the same against Apache Kafka.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
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
ACLS, ACLS_OLD = "org.apache.kafka.tools.AclCommand", "kafka.admin.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
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


def kafka_python_options(closed: ClosedCluster, mechanism: str) -> dict[str, Any]:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return closed.token

    more = {"sasl_oauth_token_provider": Tokens()} if mechanism == "OAUTHBEARER" else {}
    return closed.python_options(mechanism) | {"ssl_cafile": str(closed.cert)} | more


def aiokafka_options(closed: ClosedCluster, mechanism: str) -> dict[str, Any]:
    class Tokens(AioTokens):
        async def token(self) -> str:
            return closed.token

    more = {"sasl_oauth_token_provider": Tokens()} if mechanism == "OAUTHBEARER" else {}
    context = ssl.create_default_context(cafile=str(closed.cert))
    return closed.python_options(mechanism) | {"ssl_context": context} | more


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(closed: ClosedCluster, mechanism: str) -> None:
    options = kafka_python_options(closed, mechanism)
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
    options = aiokafka_options(closed, mechanism)
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


@pytest.mark.parametrize(("jar_set", "acls"), [("kafka-3.9", ACLS_OLD), ("kafka", ACLS)])
def test_a_right_comes_and_goes_by_tools_under_a_client(
    closed: ClosedCluster, jar_set: str, acls: str
) -> None:
    """kafka-configs makes a user, kafka-acls gives it a right and takes it away; a client that is connected
    throughout feels it with its next request."""
    admin = ("--bootstrap-server", closed.bootstrap, "--command-config")
    config = (*admin, str(closed.properties("PLAIN", "admin")))
    name = f"user of {jar_set}"
    user = ("--entity-type", "users", "--entity-name", name)
    password = f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"
    java.run(CONFIGS, *config, "--alter", *user, "--add-config", password, jar_set=jar_set)
    right = ("--allow-principal", f"User:{name}", "--operation", "Write", "--topic", "secrets")
    java.run(acls, *config, "--add", *right, jar_set=jar_set)
    producer = ConfluentProducer(closed.librdkafka_options("SCRAM-SHA-512", name))

    def sent() -> int | None:
        results: list[KafkaError | None] = []
        producer.produce("secrets", b"x", partition=0, on_delivery=lambda error, _: results.append(error))
        assert producer.flush(30) == 0
        return None if results[0] is None else results[0].code()

    assert [sent(), sent()] == [None, None]
    java.run(acls, *config, "--remove", "--force", *right, jar_set=jar_set)
    assert sent() == KafkaError.TOPIC_AUTHORIZATION_FAILED


Send = Callable[[int], None]


def kafka_python_sender(closed: ClosedCluster, mechanism: str, stack: ExitStack) -> Send:
    producer = KafkaProducer(**kafka_python_options(closed, mechanism), acks="all", retries=50)
    stack.callback(producer.close)

    def send(partition: int) -> None:
        producer.send("orders", b"x", partition=partition).get(60)

    return send


def aiokafka_sender(closed: ClosedCluster, mechanism: str, stack: ExitStack) -> Send:
    loop = stack.enter_context(asyncio.Runner())

    async def started() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**aiokafka_options(closed, mechanism), acks="all")
        await producer.start()
        return producer

    producer = loop.run(started())
    stack.callback(lambda: loop.run(producer.stop()))

    def send(partition: int) -> None:
        loop.run(asyncio.wait_for(producer.send_and_wait("orders", b"x", partition=partition), 60))

    return send


def librdkafka_sender(closed: ClosedCluster, mechanism: str, _stack: ExitStack) -> Send:
    producer = ConfluentProducer(closed.librdkafka_options(mechanism, acks="all"))

    def send(partition: int) -> None:
        errors: list[KafkaError | None] = []
        producer.produce(
            "orders", b"x", partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
        assert producer.flush(60) == 0
        assert errors == [None]

    return send


def test_a_node_dies_under_all_of_them(closed: ClosedCluster) -> None:
    """Each library, with each mechanism, has sent something; then a leader is gone. Whatever they send
    afterwards arrives. The Java clients are of two releases, by SCRAM and with a delegation token."""
    with ExitStack() as stack:
        senders = [
            make(closed, mechanism, stack)
            for make in (kafka_python_sender, aiokafka_sender, librdkafka_sender)
            for mechanism in MECHANISMS
        ]
        writers = {name: java_writer(closed, stack, *how) for name, how in JAVA_WRITERS.items()}
        reading = {"group.id": "of java", "auto.offset.reset": "earliest"}
        reader = ConfluentConsumer(closed.librdkafka_options("SCRAM-SHA-256", **reading))
        stack.callback(reader.close)
        reader.subscribe(["one"])
        for name, written in writers.items():
            assert written.stdin is not None
            written.stdin.write(f"{name} before\n".encode())
            written.stdin.flush()
        assert next_values(reader, 3) == {f"{name} before" for name in writers}
        send_everywhere(senders)
        closed.cluster.kill(closed.cluster.leader_of("one", 0))
        said = [
            written.communicate(f"{name} after\n{name} all\n".encode(), timeout=90)[1].decode()[-2000:]
            for name, written in writers.items()
        ]
        send_everywhere(senders)
        wanted = {f"{name} {what}" for name in writers for what in ("after", "all")}
        assert next_values(reader, 6) == wanted, said


JAVA_WRITERS = {
    "4.1 with a token": ("kafka", PRODUCER, BY_TOKEN),
    "4.1": ("kafka", PRODUCER, "SCRAM-SHA-512"),
    "3.9": ("kafka-3.9", PRODUCER_OLD, "SCRAM-SHA-256"),
}


def java_writer(
    closed: ClosedCluster, stack: ExitStack, jar_set: str, program: str, way: str
) -> subprocess.Popen[bytes]:
    """Sends each line of its input to topic `one`."""
    arguments = ("--bootstrap-server", closed.bootstrap, "--topic", "one", "--sync")
    config = ("--producer.config", str(closed.properties(way)), "--producer-property", "acks=all")
    written = subprocess.Popen(
        java.command(program, *arguments, *config, jar_set=jar_set),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    stack.callback(written.wait)
    stack.callback(written.kill)
    return written


def next_values(consumer: ConfluentConsumer, number: int) -> set[str]:
    return {next_value(consumer).decode() for _ in range(number)}


def send_everywhere(senders: Sequence[Send]) -> None:
    for send in senders:
        for partition in range(3):
            send(partition)


def next_value(consumer: ConfluentConsumer) -> bytes:
    """Of the next record. Errors of a connection that broke are passed over: the client finds another."""
    for _ in range(60):
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            return bytes(message.value())
    raise AssertionError("there is no further record")
