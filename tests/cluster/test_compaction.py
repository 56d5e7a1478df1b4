"""Replicas that are compacted each at its own time have the same last values, whoever is asked (L03)."""

from __future__ import annotations

import random
import time

import confluent_kafka
import pytest

from chronik.model import NodeId
from chronik.testing import Cluster
from tests.configs import set_configs

TOPIC = "compacted"
KEYS = 300
UPDATES = 6_000
"""In each round."""
TRY_S = 120
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": str(64 * 1024),
    "segment.ms": "300",
    "min.insync.replicas": "2",
}


def update(cluster: Cluster, state: dict[bytes, bytes], source: random.Random) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for number in range(UPDATES):
        key, value = b"key-%d" % source.randrange(KEYS), b"value %d" % source.randrange(10**9)
        producer.produce(TOPIC, value, key, on_delivery=lambda error, _: error and failures.append(error))
        state[key] = value
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    assert not failures, failures[:3]


def wait_for_agreement(cluster: Cluster, state: dict[bytes, bytes]) -> None:
    """Each replica, asked by itself, has the last value of every key."""

    def holds() -> bool:
        found = cluster.records(TOPIC)
        return len(found) == 3 and all(
            {record.key: record.value for record in records} == state for records in found.values()
        )

    cluster.wait_for(holds, "every replica has the last value of each key", 60)


def counts(cluster: Cluster) -> dict[NodeId, int]:
    return {node_id: len(records) for node_id, records in cluster.records(TOPIC).items()}


def let_compact(cluster: Cluster, node_id: NodeId, *, every_ms: int) -> None:
    set_configs(cluster.bootstrap, "broker", str(node_id), {"log.cleaner.backoff.ms": str(every_ms)})


def traces(cluster: Cluster, node_id: NodeId) -> list[str]:
    """Files that a compaction makes first and has renamed or removed when it is over."""
    folder = cluster.data_dir(node_id) / "topics" / f"{TOPIC}-0"
    return [file.name for suffix in ("cleaned", "swap") for file in folder.glob(f"*.{suffix}")]


def kill_inside_a_compaction(
    cluster: Cluster, node_id: NodeId, state: dict[bytes, bytes], source: random.Random
) -> None:
    """Killed as soon as a compaction shows. If it was over by then, the node comes back for another try."""
    let_compact(cluster, node_id, every_ms=50)
    until = time.monotonic() + TRY_S
    while time.monotonic() < until:
        update(cluster, state, source)  # so that there is something to compact
        look_until = time.monotonic() + 2
        while not traces(cluster, node_id) and time.monotonic() < look_until:
            time.sleep(0.0005)
        cluster.kill(node_id)
        if found := traces(cluster, node_id):
            print(f"node {node_id} died inside a compaction: {found}")
            return
        cluster.start(node_id)
    raise AssertionError(f"no compaction of node {node_id} could be caught within {TRY_S} s")


@pytest.mark.timeout(600)
def test_every_replica_has_the_last_values_whatever_it_has_compacted() -> None:
    source = random.Random(7)
    state: dict[bytes, bytes] = {}
    with Cluster(nodes=3, cleaner_backoff_ms=3_600_000, can_partition=False) as cluster:
        cluster.create_topic(TOPIC, replication_factor=3, configs=CONFIGS)
        eager = cluster.leader_of(TOPIC)
        let_compact(cluster, eager, every_ms=50)
        for number in range(3):
            update(cluster, state, source)
            leader = cluster.leader_of(TOPIC)
            if number == 0:
                cluster.wait_for(
                    lambda: counts(cluster)[eager] < UPDATES / 2, "the first leader is compacted", 60
                )
                wait_for_agreement(cluster, state)
                others = [count for node_id, count in counts(cluster).items() if node_id != eager]
                assert others == [UPDATES, UPDATES], "compaction of one replica changed another"
            wait_for_agreement(cluster, state)
            # The next leader goes on from a log that was compacted less, or more.
            let_compact(cluster, next(n for n in cluster.nodes if n != leader), every_ms=50)
            kill_inside_a_compaction(cluster, leader, state, source)
            cluster.wait_for(lambda leader=leader: cluster.leader_of(TOPIC) != leader, "another node leads")
            update(cluster, state, source)
            cluster.start(leader)
            wait_for_agreement(cluster, state)
        for node_id in cluster.nodes:
            let_compact(cluster, node_id, every_ms=50)
        cluster.wait_for(lambda: max(counts(cluster).values()) < 3 * KEYS, "every replica is compacted", 60)
        wait_for_agreement(cluster, state)
