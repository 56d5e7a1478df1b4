"""Java clients of earlier years, with the protocol versions of their time."""

from __future__ import annotations

import pytest

from tests import java
from tests.process import ServerProcess

LINES = [f"line {number}" for number in range(50)]


def produce_and_consume(broker: ServerProcess, topic: str, jar_set: str, servers: str) -> list[str]:
    java.run(
        "kafka.tools.ConsoleProducer",
        *(servers, broker.bootstrap, "--topic", topic, "--request-required-acks", "-1"),
        stdin="\n".join(LINES) + "\n",
        jar_set=jar_set,
    )
    got = java.run(
        "kafka.tools.ConsoleConsumer",
        *java.from_start(broker.bootstrap, topic),
        *("--max-messages", str(len(LINES)), "--timeout-ms", "60000"),
        jar_set=jar_set,
    )
    return got.lines()


def test_client_2_8(broker: ServerProcess, topic: str) -> None:
    command = ("kafka.admin.TopicCommand", "--bootstrap-server", broker.bootstrap)
    java.run(*command, "--create", "--topic", topic, "--partitions", "1", jar_set="kafka-2.8")
    assert topic in java.run(*command, "--list", jar_set="kafka-2.8").lines()
    assert produce_and_consume(broker, topic, "kafka-2.8", "--bootstrap-server") == LINES
    java.run(*command, "--delete", "--topic", topic, jar_set="kafka-2.8")
    assert topic not in java.run(*command, "--list", jar_set="kafka-2.8").lines()


def test_client_3_9(broker: ServerProcess, topic: str) -> None:
    """The newest clients before 4.0: a topic, records, a group of each protocol, a transaction."""
    tools = "org.apache.kafka.tools"
    servers = ("--bootstrap-server", broker.bootstrap)
    command = (f"{tools}.TopicCommand", *servers)
    java.run(*command, "--create", "--topic", topic, "--partitions", "1", jar_set="kafka-3.9")
    java.run(
        "kafka.tools.ConsoleProducer",
        *(*servers, "--topic", topic, "--request-required-acks", "-1", "--compression-codec", "zstd"),
        stdin="\n".join(LINES) + "\n",
        jar_set="kafka-3.9",
    )
    for protocol in ("classic", "consumer"):
        got = java.run(
            f"{tools}.consumer.ConsoleConsumer",
            *(*servers, "--topic", topic, "--group", f"{topic}-{protocol}", "--from-beginning"),
            *("--consumer-property", f"group.protocol={protocol}"),
            *("--max-messages", str(len(LINES)), "--timeout-ms", "60000"),
            jar_set="kafka-3.9",
        )
        assert got.lines() == LINES
    produced = java.run(
        f"{tools}.ProducerPerformance",
        *("--topic", topic, "--num-records", "500", "--record-size", "100", "--throughput", "-1"),
        *("--transactional-id", f"{topic}-tx", "--transaction-duration-ms", "50"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}"),
        jar_set="kafka-3.9",
    )
    assert "500 records sent" in produced.lines()[-1]


def test_client_0_11(broker: ServerProcess, topic: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--broker") == "kafka":
        pytest.skip("Apache Kafka 4 no longer serves clients this old")
    assert produce_and_consume(broker, topic, "kafka-0.11", "--broker-list") == LINES
