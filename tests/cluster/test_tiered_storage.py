"""Tiered storage on three real nodes: leaders die while segments go up, every record comes back (L06)."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from chronik.model import NodeId
from chronik.testing import Cluster

TOPIC = "tiered"
ROUND = 3_000
ROUNDS = 4
READ_S = 120
CONFIGS = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "segment.bytes": str(32 * 1024),
    "min.insync.replicas": "2",
    "file.delete.delay.ms": "0",
}


def produce(bootstrap: str, first: int, count: int) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, "batch.size": 4_096}
    )
    for number in range(first, first + count):
        value = b"%08d" % number + b"." * 100
        producer.produce(TOPIC, value, on_delivery=lambda error, _: error and failures.append(error))
        if number % 50 == 0:
            producer.poll(0.001)
    assert producer.flush(120) == 0
    assert failures == []


def consume(bootstrap: str, count: int) -> list[int]:
    """Values by offset, from the log's start."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"g{random.random()}", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[int] = []
    until = time.monotonic() + READ_S
    while len(found) < count and time.monotonic() < until:
        found += [
            int(message.value()[:8])
            for message in consumer.consume(1_000, 1)
            if message.error() is None and message.value() is not None
        ]
    consumer.close()
    return found


def first_local(cluster: Cluster, node_id: NodeId) -> int:
    folder = cluster.data_dir(node_id) / "topics" / f"{TOPIC}-0"
    return min((int(path.stem) for path in folder.glob("*.log")), default=0)


def segments(objects: Path) -> int:
    return len(list(objects.rglob("*.segment")))


@pytest.mark.timeout(900)
def test_every_record_comes_back_though_leaders_are_killed_while_they_upload(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    source = random.Random(11)
    with (
        ThreadPoolExecutor(1) as producers,
        Cluster(
            nodes=3,
            object_store=objects.as_uri(),
            tiering_interval_ms=100,
            retention_check_interval_ms=200,
            can_partition=False,
        ) as cluster,
    ):
        cluster.create_topic(TOPIC, replication_factor=3, configs=CONFIGS)
        for number in range(ROUNDS):
            wanted = segments(objects) + 1 + source.randrange(3)
            producing = producers.submit(produce, cluster.bootstrap, number * ROUND, ROUND)
            leader = cluster.leader_of(TOPIC)
            cluster.wait_for(lambda wanted=wanted: segments(objects) >= wanted, "segments go up", 60)
            cluster.kill(leader)
            cluster.wait_for(
                lambda leader=leader: cluster.leader_of(TOPIC) != leader, "another node leads", 60
            )
            producing.result(150)
            written = (number + 1) * ROUND
            assert consume(cluster.bootstrap, written) == list(range(written))
            cluster.start(leader)
            cluster.wait_ready()
        # A node that comes back has all that its WAL had in one segment, which ends with the next append.
        produce(cluster.bootstrap, ROUNDS * ROUND, ROUND)
        total = (ROUNDS + 1) * ROUND
        for node_id in cluster.nodes:
            cluster.wait_for(
                lambda node_id=node_id: first_local(cluster, node_id) > total * 0.8,
                f"node {node_id} has no local copies",
                120,
            )
        assert consume(cluster.bootstrap, total) == list(range(total))
        print(f"{segments(objects)} segments in the store")
