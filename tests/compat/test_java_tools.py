"""Apache Kafka 4.1's console tools, performance tools and admin commands, unchanged."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from chronik.client.apis import Api
from chronik.wire.api import ApiKey
from tests import java
from tests.compat.test_configs import CLIENT_METRICS, GROUP, alter, ask
from tests.compat.test_transactions import create
from tests.process import ServerProcess

TOOLS = "org.apache.kafka.tools"
DESCRIBE_LOG_DIRS = Api(ApiKey.DESCRIBE_LOG_DIRS, 4, 4)


def topics(broker: ServerProcess, *arguments: str, check: bool = True) -> java.Output:
    return java.run(f"{TOOLS}.TopicCommand", "--bootstrap-server", broker.bootstrap, *arguments, check=check)


def end_offsets(broker: ServerProcess, topic: str, time: str = "latest") -> dict[int, int]:
    output = java.run(
        f"{TOOLS}.GetOffsetShell",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--time", time),
    )
    rows = (line.split(":") for line in output.lines() if line.startswith(f"{topic}:"))
    return {int(partition): int(offset) for _, partition, offset in rows}


def test_topic_command(broker: ServerProcess, topic: str) -> None:
    topics(broker, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000")
    assert topic in topics(broker, "--list").lines()
    described = topics(broker, "--describe", "--topic", topic).out
    assert "PartitionCount: 3" in described
    assert "ReplicationFactor: 1" in described
    assert "retention.ms=3600000" in described
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3
    topics(broker, "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in topics(broker, "--describe", "--topic", topic).out
    topics(broker, "--delete", "--topic", topic)
    assert topic not in topics(broker, "--list").lines()


def test_topic_command_is_told_what_is_wrong(broker: ServerProcess, topic: str) -> None:
    topics(broker, "--create", "--topic", topic)
    again = topics(broker, "--create", "--topic", topic, check=False)
    assert "already exists" in again.out + again.err
    bad = topics(broker, "--create", "--topic", topic + "/x", check=False)
    assert "Topic name is invalid" in bad.out + bad.err
    many = topics(broker, "--create", "--topic", topic + "y", "--replication-factor", "3", check=False)
    assert re.search(r"(?i)replication factor", many.out + many.err)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_and_consumer(broker: ServerProcess, topic: str, compression: str) -> None:
    sent = [f"key{number}:value {number}" for number in range(100)]
    java.run(
        f"{TOOLS}.ConsoleProducer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--compression-codec", compression),
        *("--property", "parse.key=true", "--property", "key.separator=:"),
        stdin="\n".join(sent) + "\n",
    )
    got = java.run(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *java.from_start(broker.bootstrap, topic),
        *("--max-messages", "100", "--timeout-ms", "60000"),
        *("--property", "print.key=true", "--property", "key.separator=:"),
    )
    assert got.lines() == sent


def test_performance_tools(broker: ServerProcess, topic: str) -> None:
    count = 20_000
    produced = java.run(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", "256", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all"),
    )
    assert f"{count} records sent" in produced.lines()[-1]
    assert end_offsets(broker, topic) == {0: count}
    consumed = java.run(
        f"{TOOLS}.ConsumerPerformance",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--messages", str(count)),
        *("--timeout", "60000", "--hide-header"),
    )
    assert int(consumed.lines()[-1].split(",")[4]) == count


def test_offsets_by_position_and_by_time(broker: ServerProcess, topic: str) -> None:
    java.run(
        f"{TOOLS}.ConsoleProducer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic),
        stdin="".join(f"{number}\n" for number in range(7)),
    )
    assert end_offsets(broker, topic) == {0: 7}
    assert end_offsets(broker, topic, "earliest") == {0: 0}
    assert end_offsets(broker, topic, "0") == {0: 0}
    assert 0 <= end_offsets(broker, topic, "max-timestamp")[0] <= 6


def test_records_are_deleted_up_to_an_offset(broker: ServerProcess, topic: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    java.run(
        f"{TOOLS}.ConsoleProducer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic),
        stdin="".join(f"{number}\n" for number in range(10)),
    )
    file = tmp_path / "delete.json"
    file.write_text(
        '{"partitions": [{"topic": "%s", "partition": 0, "offset": 4}], "version": 1}' % topic  # noqa: UP031
    )
    java.run(
        f"{TOOLS}.DeleteRecordsCommand",
        *("--bootstrap-server", broker.bootstrap, "--offset-json-file", str(file)),
    )
    assert end_offsets(broker, topic, "earliest") == {0: 4}
    assert end_offsets(broker, topic) == {0: 10}
    got = java.run(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *java.from_start(broker.bootstrap, topic),
        *("--max-messages", "6", "--timeout-ms", "60000"),
    )
    assert got.lines() == ["4", "5", "6", "7", "8", "9"]


def test_broker_api_versions(broker: ServerProcess) -> None:
    output = java.run(f"{TOOLS}.BrokerApiVersionsCommand", "--bootstrap-server", broker.bootstrap).out
    assert re.search(r"Produce\(0\): .*usable: 1[0-9]", output)
    assert re.search(r"Fetch\(1\): .*usable: 1[0-9]", output)


def test_log_dirs(broker: ServerProcess, topic: str) -> None:
    topics(broker, "--create", "--topic", topic, "--partitions", "2")
    output = java.run(
        f"{TOOLS}.LogDirsCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--topic-list", topic),
    ).out
    assert f"{topic}-0" in output
    assert f"{topic}-1" in output


def test_configuration_of_a_topic_is_described(broker: ServerProcess, topic: str) -> None:
    topics(broker, "--create", "--topic", topic, "--config", "max.message.bytes=2000000")
    output = java.run(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--entity-type", "topics"),
        *("--entity-name", topic),
    ).out
    assert "max.message.bytes=2000000" in output


def test_offsets_of_a_group_are_deleted(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, 2)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    kept, deleted = TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 5)
    consumer.commit(offsets=[kept, deleted], asynchronous=False)
    said = java.run(
        f"{TOOLS}.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--delete-offsets", "--group", topic),
        *("--topic", f"{topic}:1"),
    )
    assert re.search(rf"^{topic}\s+1\s+Successful\s*$", said.out, re.MULTILINE), said.out
    left = consumer.committed([kept, deleted], timeout=60)
    assert [one.offset for one in left] == [3, OFFSET_INVALID]
    consumer.close()


def test_rarer_admin_calls(broker: ServerProcess, topic: str, tmp_path: Path) -> None:
    """ListConfigResources, UpdateFeatures and AlterReplicaLogDirs, each by a tool that sends it."""
    create(broker, topic)
    described = asyncio.run(ask(broker, DESCRIBE_LOG_DIRS, {"topics": None}))
    partition = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [described.results[0].log_dir]}
    moves = tmp_path / "moves.json"
    moves.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    assert asyncio.run(alter(broker, CLIENT_METRICS, topic, interval_ms="60000")) == 0
    assert asyncio.run(alter(broker, GROUP, topic, consumer_session_timeout_ms="50000")) == 0
    servers = ("--bootstrap-server", broker.bootstrap)
    reassign = (
        f"{TOOLS}.reassign.ReassignPartitionsCommand",
        *servers,
        "--reassignment-json-file",
        str(moves),
    )
    subscriptions, groups, feature, moved, verified = java.run_several(
        (f"{TOOLS}.ClientMetricsCommand", *servers, "--list"),
        ("kafka.admin.ConfigCommand", *servers, "--describe", "--entity-type", "groups"),
        (f"{TOOLS}.FeatureCommand", *servers, "upgrade", "--feature", "transaction.version=2"),
        (*reassign, "--execute"),
        (*reassign, "--verify"),
    )
    assert topic in subscriptions.lines()
    assert f"Dynamic configs for group {topic} are:" in groups.out
    assert "consumer.session.timeout.ms=50000" in groups.out
    assert "transaction.version was upgraded to 2." in feature.lines()
    assert f"Successfully started moving log directory to {partition['log_dirs'][0]}" in moved.out
    assert f"Reassignment of partition {topic}-0 is completed." in verified.out
    assert asyncio.run(alter(broker, CLIENT_METRICS, topic, interval_ms=None)) == 0
    assert asyncio.run(alter(broker, GROUP, topic, consumer_session_timeout_ms=None)) == 0
