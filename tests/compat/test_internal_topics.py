"""What clients may and may not do to the coordinators' topics (T41)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.process import ServerProcess

_admin: Any = confluent_kafka.admin  # parts of it are not in its type hints
OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
DEADLINE_S = 60


@pytest.fixture
def admin(broker: ServerProcess) -> Any:
    return _admin.AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def offsets_topic(broker: ServerProcess, admin: Any, topic: str) -> str:
    """The topic of committed offsets, made by the coordinator because somebody commits."""
    admin.create_topics([_admin.NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    return OFFSETS


def code_of(work: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as refused:
        work()
    return int(refused.value.args[0].code())


def configs_of(admin: Any, name: str) -> dict[str, str]:
    resource = _admin.ConfigResource(_admin.ConfigResource.Type.TOPIC, name)
    found = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return {key: entry.value for key, entry in found.items()}


def test_nobody_but_the_coordinator_writes_there(broker: ServerProcess, offsets_topic: str) -> None:
    outcomes: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 20_000})
    for _ in range(2):  # the second begins like the first, so it is not read again
        producer.produce(
            offsets_topic, b"x", partition=0, on_delivery=lambda error, _: outcomes.append(error)
        )
        producer.flush(DEADLINE_S)
    assert [error.code() for error in outcomes if error is not None] == [KafkaError.TOPIC_EXCEPTION] * 2


def test_naming_one_makes_no_ordinary_topic(admin: Any) -> None:
    """Apache Kafka makes it with the coordinator's configs, chronik not at all."""
    admin.list_topics(TRANSACTIONS, timeout=DEADLINE_S)
    if TRANSACTIONS in admin.list_topics(timeout=DEADLINE_S).topics:
        assert configs_of(admin, TRANSACTIONS)["cleanup.policy"] == "compact"


def test_its_records_are_not_deleted(admin: Any, offsets_topic: str) -> None:
    tp = TopicPartition(offsets_topic, 0, 0)
    code = code_of(lambda: admin.delete_records([tp])[tp].result(DEADLINE_S))
    assert code == KafkaError.TOPIC_EXCEPTION


def test_commits_go_on_however_many_replicas_are_asked_for(
    broker: ServerProcess, admin: Any, offsets_topic: str, topic: str
) -> None:
    """A min.insync.replicas above the replication factor means all replicas."""

    def set_min_insync(operation: Any) -> None:
        entry = _admin.ConfigEntry("min.insync.replicas", "100", incremental_operation=operation)
        resource = _admin.ConfigResource(
            _admin.ConfigResource.Type.TOPIC, offsets_topic, incremental_configs=[entry]
        )
        admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    set_min_insync(_admin.AlterConfigOpType.SET)
    try:
        assert configs_of(admin, offsets_topic)["min.insync.replicas"] == "100"
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
        (committed,) = consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
        assert (committed.error, committed.offset) == (None, 7)
        consumer.close()
    finally:
        set_min_insync(_admin.AlterConfigOpType.DELETE)


@pytest.mark.usefixtures("only_chronik")
def test_nobody_breaks_it(admin: Any, offsets_topic: str) -> None:
    """Apache Kafka obeys; the group coordinator then has another number of partitions, or none."""
    new = _admin.NewPartitions(offsets_topic, 500)
    entry = _admin.ConfigEntry("cleanup.policy", "delete", incremental_operation=_admin.AlterConfigOpType.SET)
    resource = _admin.ConfigResource(
        _admin.ConfigResource.Type.TOPIC, offsets_topic, incremental_configs=[entry]
    )
    attempts: list[tuple[Any, Any]] = [
        (lambda: admin.delete_topics([offsets_topic])[offsets_topic], KafkaError.INVALID_REQUEST),
        (lambda: admin.create_partitions([new])[offsets_topic], KafkaError.INVALID_REQUEST),
        (lambda: admin.incremental_alter_configs([resource])[resource], KafkaError.INVALID_CONFIG),
    ]
    assert [code_of(lambda ask=ask: ask().result(DEADLINE_S)) for ask, _ in attempts] == [
        code for _, code in attempts
    ]
    assert configs_of(admin, offsets_topic)["cleanup.policy"] == "compact"
