"""Admin clients and tools, unchanged: configs, partitions, offsets, records, the cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicCollection
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.error import KafkaException
from kafka import KafkaAdminClient

from tests import java
from tests.compat.clients import Confluent, Record
from tests.process import ServerProcess

TOOLS = "org.apache.kafka.tools"


@pytest.fixture
def admin(broker: ServerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(timeout=60) for future in futures.values()]


def make(admin: AdminClient, topic: str, **options: Any) -> None:
    done(admin.create_topics([NewTopic(topic, **{"num_partitions": 1, "replication_factor": 1, **options})]))


def configs_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    (configs,) = done(admin.describe_configs([ConfigResource(kind, name)]))
    return dict(configs)


def alter(admin: AdminClient, kind: ResourceType, name: str, *entries: tuple[str, str | None, Any]) -> None:
    changes = [ConfigEntry(key, value, incremental_operation=operation) for key, value, operation in entries]
    done(admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=changes)]))


def test_librdkafka_changes_configs_of_topics(admin: AdminClient, topic: str) -> None:
    make(admin, topic, config={"retention.ms": "3600000"})
    configs = configs_of(admin, ResourceType.TOPIC, topic)
    assert configs["retention.ms"].value == "3600000"
    assert configs["retention.ms"].source == 1
    assert configs["cleanup.policy"].is_default
    alter(
        admin,
        ResourceType.TOPIC,
        topic,
        ("retention.ms", None, AlterConfigOpType.DELETE),
        ("max.message.bytes", "2000", AlterConfigOpType.SET),
        ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    )
    configs = configs_of(admin, ResourceType.TOPIC, topic)
    assert configs["retention.ms"].value == "604800000"
    assert configs["max.message.bytes"].value == "2000"
    assert set(configs["cleanup.policy"].value.split(",")) == {"delete", "compact"}


def test_a_lower_message_size_is_in_force_at_once(
    broker: ServerProcess, admin: AdminClient, topic: str
) -> None:
    make(admin, topic)
    client = Confluent(broker.bootstrap)
    client.produce(topic, [Record(value=b"x" * 5000)])
    alter(admin, ResourceType.TOPIC, topic, ("max.message.bytes", "2000", AlterConfigOpType.SET))
    with pytest.raises((KafkaException, AssertionError)):
        client.produce(topic, [Record(value=b"x" * 5000)])


@pytest.mark.parametrize(("key", "value"), [("retention.ms", "soon"), ("retention.mss", "5")])
def test_invalid_configs_are_refused_by_name(admin: AdminClient, topic: str, key: str, value: str) -> None:
    make(admin, topic)
    with pytest.raises(KafkaException, match=re.escape(key)):
        alter(admin, ResourceType.TOPIC, topic, (key, value, AlterConfigOpType.SET))
    with pytest.raises(KafkaException, match=re.escape(key)):
        make(admin, topic + "-2", config={key: value})


def test_librdkafka_describes_the_broker(admin: AdminClient) -> None:
    configs = configs_of(admin, ResourceType.BROKER, "1")
    assert configs["num.partitions"].value == "1"
    assert configs["log.retention.hours"] is not None
    cluster = admin.describe_cluster(include_authorized_operations=True).result(timeout=60)
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.cluster_id
    assert cluster.authorized_operations


def test_librdkafka_adds_partitions_and_describes_topics(admin: AdminClient, topic: str) -> None:
    make(admin, topic)
    done(admin.create_partitions([NewPartitions(topic, 3)]))
    with pytest.raises(KafkaException):
        done(admin.create_partitions([NewPartitions(topic, 2)]))
    (described,) = done(admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True))
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert described.topic_id
    assert not described.is_internal
    assert described.authorized_operations


def test_librdkafka_lists_offsets_and_deletes_records(
    broker: ServerProcess, admin: AdminClient, topic: str
) -> None:
    make(admin, topic)
    Confluent(broker.bootstrap).produce(topic, [Record(value=str(number).encode()) for number in range(10)])
    partition = ConfluentPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        (found,) = done(admin.list_offsets({partition: spec}, isolation_level=IsolationLevel.READ_COMMITTED))
        return int(found.offset)

    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (0, 10)
    assert offset(OffsetSpec.for_timestamp(0)) == 0
    assert 0 <= offset(OffsetSpec.max_timestamp()) < 10
    (deleted,) = done(admin.delete_records([ConfluentPartition(topic, 0, 6)]))
    assert deleted.low_watermark == 6
    assert offset(OffsetSpec.earliest()) == 6
    with pytest.raises(KafkaException):
        done(admin.delete_records([ConfluentPartition(topic, 0, 11)]))


def config_command(broker: ServerProcess, *arguments: str, check: bool = True) -> java.Output:
    return java.run(
        "kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap, *arguments, check=check
    )


def test_config_command(broker: ServerProcess, admin: AdminClient, topic: str) -> None:
    make(admin, topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    config_command(broker, *entity, "--alter", "--add-config", "retention.ms=5000,segment.bytes=2000000")
    described = config_command(broker, *entity, "--describe").out
    assert re.search(
        r"retention\.ms=5000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention\.ms=5000", described
    )
    config_command(broker, *entity, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in config_command(broker, *entity, "--describe").out
    wrong = config_command(broker, *entity, "--alter", "--add-config", "retention.mss=1", check=False)
    assert "retention.mss" in wrong.out + wrong.err


def test_config_command_for_brokers(broker: ServerProcess) -> None:
    every = ("--entity-type", "brokers", "--entity-default")
    config_command(broker, *every, "--alter", "--add-config", "log.cleaner.delete.retention.ms=77000")
    assert "log.cleaner.delete.retention.ms=77000" in config_command(broker, *every, "--describe").out
    own = config_command(broker, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all").out
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.cleaner.delete.retention.ms=77000" in own
    config_command(broker, *every, "--alter", "--delete-config", "log.cleaner.delete.retention.ms")
    assert "77000" not in config_command(broker, *every, "--describe").out


def test_cluster_tool(broker: ServerProcess) -> None:
    out = java.run(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", broker.bootstrap).out
    assert re.search(r"Cluster ID: \S+", out)
    endpoints = java.run(f"{TOOLS}.ClusterTool", "list-endpoints", "--bootstrap-server", broker.bootstrap).out
    assert str(broker.kafka_port) in endpoints


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_describes_log_dirs(broker: ServerProcess, admin: AdminClient, topic: str) -> None:
    make(admin, topic)
    Confluent(broker.bootstrap).produce(topic, [Record(value=b"x" * 5000)])
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        described = repr(client.describe_log_dirs())
    finally:
        client.close()
    assert topic in described
    assert int(re.search(r"total_bytes\W+(\d+)", described)[1]) > 0  # type: ignore[index]
    assert int(re.search(r"usable_bytes\W+(\d+)", described)[1]) > 0  # type: ignore[index]


def test_no_reassignments_are_under_way(broker: ServerProcess) -> None:
    listed = java.run(
        f"{TOOLS}.reassign.ReassignPartitionsCommand", "--bootstrap-server", broker.bootstrap, "--list"
    ).out
    assert "No partition reassignments found" in listed
