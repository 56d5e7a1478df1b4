"""Producing to three nodes: latencies, acks of every kind, what happens when replicas are missing."""

from __future__ import annotations

import threading
import time

import confluent_kafka
import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from chronik.testing import Cluster
from tests.cluster import clients
from tests.cluster.conftest import Figure


def test_one_message_to_all_replicas_takes_milliseconds(cluster: Cluster, topic: str, figure: Figure) -> None:
    cluster.create_topic(topic, replication_factor=3)
    producer = clients.producer(cluster.bootstrap)
    seconds = [clients.send(producer, topic, b"one") for _ in range(200)]
    figure("one message, p50", clients.median(seconds), 0.010)
    figure("one message, worst", max(seconds), 2)
    ends = cluster.end_offsets(topic)
    assert ends == dict.fromkeys(cluster.nodes, 200), "S15: end offsets are equal right after acks=all"
    cluster.assert_replicas_agree(topic)


@pytest.mark.timeout(3600)
def test_5000_with_acks_1_are_all_consumed(cluster: Cluster, topic: str, is_long: bool) -> None:
    """S24: the watermark must move on this path too, and not stop (T01)."""
    for number in range(100 if is_long else 3):
        name = f"{topic}-{number}"
        cluster.create_topic(name, partitions=3, replication_factor=3)
        producer = clients.producer(cluster.bootstrap, acks=1)
        for index in range(5000):
            producer.produce(name, b"record %d" % index, partition=index % 3)
            producer.poll(0)
        assert producer.flush(60) == 0
        assert clients.count_records(cluster.bootstrap, name, 5000) == 5000
        cluster.assert_replicas_agree(name)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_the_watermark_follows_whatever_acks_asks(cluster: Cluster, topic: str, acks: object) -> None:
    """T01: not only at first. A watermark froze at 1,664 once, while appends went on."""
    cluster.create_topic(topic, replication_factor=3)
    producer = clients.producer(cluster.bootstrap, acks=acks)
    for index in range(2_000):
        producer.produce(topic, b"record %d" % index, partition=0)
        if index < 100:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0
    cluster.wait_for(
        lambda: set(cluster.high_watermarks(topic).values()) == {2_000}, "2,000 records below every watermark"
    )
    cluster.assert_replicas_agree(topic)


@pytest.mark.timeout(300)
def test_128_threads_one_message_at_a_time(cluster: Cluster, topic: str, is_long: bool) -> None:
    """S03: not one request fails. Threads share 8 producers of kafka-python, which do not try again by
    themselves: an error that a second attempt would hide counts too."""
    cluster.create_topic(topic, partitions=6, replication_factor=3)
    producers = [clients.kafka_python_producer(cluster.bootstrap, retries=0) for _ in range(8)]
    until = time.monotonic() + (60 if is_long else 5)
    seconds: list[float] = []
    failures: list[Exception] = []

    def work(number: int) -> None:
        producer = producers[number % len(producers)]
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                producer.send(topic, b"x" * 100).get(60)
            except Exception as error:
                failures.append(error)
            seconds.append(time.monotonic() - began)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(128)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for producer in producers:
        producer.close()
    print(f"{len(seconds)} sent, p50 {clients.median(seconds) * 1000:.0f} ms")
    assert not failures
    assert len(seconds) > 128
    cluster.assert_replicas_agree(topic)


def test_a_dead_follower_does_not_stall_acks_all(cluster: Cluster, topic: str, figure: Figure) -> None:
    """T08: acks=all waits for the ISR, which shrinks, not for every assigned replica."""
    cluster.create_topic(topic, replication_factor=3)
    producer = clients.producer(cluster.bootstrap)
    clients.send(producer, topic, b"before")
    leader = cluster.leader_of(topic)
    follower = next(n for n in cluster.nodes if n not in (leader, cluster.controller()))
    cluster.kill(follower)
    figure("acks=all after a follower died", clients.send(producer, topic, b"after"), 2)
    figure("and then", clients.send(producer, topic, b"later"), 0.5)
    assert not cluster.is_running(follower)
    assert len(cluster.isr_of(topic)) == 2
    cluster.start(follower)
    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 3, "the follower is back in the ISR")
    cluster.assert_replicas_agree(topic)


def test_a_frozen_follower_leaves_the_isr_in_time(cluster: Cluster, topic: str, figure: Figure) -> None:
    """T08, the harder half: the follower's connection stays open, it only says nothing any more."""
    cluster.create_topic(topic, replication_factor=3)
    producer = clients.producer(cluster.bootstrap)
    clients.send(producer, topic, b"before")
    leader = cluster.leader_of(topic)
    follower = next(n for n in cluster.nodes if n not in (leader, cluster.controller()))
    cluster.pause(follower)
    try:
        figure("acks=all after a follower froze", clients.send(producer, topic, b"after"), 5)
        figure("and then", clients.send(producer, topic, b"later"), 0.5)
    finally:
        cluster.resume(follower)
    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 3, "the follower is back in the ISR")
    cluster.assert_replicas_agree(topic)


def test_min_insync_replicas_is_enforced_at_once(cluster: Cluster, topic: str, figure: Figure) -> None:
    """T09: refused with the right error, at once; acks=1 works; accepted again when replicas are back."""
    cluster.create_topic(topic, replication_factor=3, configs={"min.insync.replicas": "3"})
    patient = clients.producer(cluster.bootstrap)
    clients.send(patient, topic, b"before")
    leader = cluster.leader_of(topic)
    follower = next(n for n in cluster.nodes if n not in (leader, cluster.controller()))
    cluster.kill(follower)
    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 2, "the ISR has shrunk")
    strict = clients.producer(cluster.bootstrap, retries=0)
    began = time.monotonic()
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        clients.send(strict, topic, b"refused")
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS
    figure("refused", time.monotonic() - began, 2)
    clients.send(clients.producer(cluster.bootstrap, acks=1), topic, b"acks=1")
    cluster.start(follower)
    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 3, "the follower is back in the ISR")
    clients.send(patient, topic, b"after")
    assert clients.count_records(cluster.bootstrap, topic, 3) == 3
    cluster.assert_replicas_agree(topic)


def _alter_min_insync_replicas(cluster: Cluster, topic: str, value: int) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic, {"min.insync.replicas": str(value)})
    admin = clients.admin(cluster.bootstrap)
    with pytest.deprecated_call():  # the old request, which clients still send
        changes = admin.alter_configs([resource])
    for future in changes.values():
        future.result(60)


def test_min_insync_replicas_can_be_changed_live(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, replication_factor=3, configs={"min.insync.replicas": "1"})
    strict = clients.producer(cluster.bootstrap, retries=0)
    leader = cluster.leader_of(topic)
    follower = next(n for n in cluster.nodes if n not in (leader, cluster.controller()))
    cluster.kill(follower)
    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 2, "the ISR has shrunk")
    clients.send(strict, topic, b"one of two")
    _alter_min_insync_replicas(cluster, topic, 3)

    def is_refused() -> bool:
        try:
            clients.send(strict, topic, b"three of two")
        except confluent_kafka.KafkaException as error:
            return bool(error.args[0].code() == confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS)
        return False

    clients.until(is_refused)
    cluster.start(follower)
    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 3, "the follower is back in the ISR")


def test_min_insync_replicas_beyond_the_replication_factor_asks_for_all_replicas(
    cluster: Cluster, topic: str
) -> None:
    cluster.create_topic(topic, replication_factor=2)
    _alter_min_insync_replicas(cluster, topic, 3)
    clients.send(clients.producer(cluster.bootstrap, retries=0), topic, b"two of two")


def test_deleted_records_are_gone_from_every_replica_when_the_answer_is_there(
    cluster: Cluster, topic: str
) -> None:
    """On a partition to which nobody writes: no later record carries the news."""
    cluster.create_topic(topic, replication_factor=3)
    producer = clients.producer(cluster.bootstrap)
    for number in range(10):
        clients.send(producer, topic, b"record %d" % number)
    admin = clients.admin(cluster.bootstrap)
    for offset in (4, 10):
        wanted = confluent_kafka.TopicPartition(topic, 0, offset)
        (deleted,) = admin.delete_records([wanted], request_timeout=clients.DEADLINE_S).values()
        assert deleted.result(clients.DEADLINE_S).low_watermark == offset
        starts = {node_id: view.log_start_offset for node_id, view in cluster.replicas(topic).items()}
        assert starts == dict.fromkeys(cluster.nodes, offset)
    cluster.assert_replicas_agree(topic)
