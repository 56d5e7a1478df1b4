"""S04: an overload of leaders, followers and metadata at once slows senders down and does nothing else."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import defaultdict

import confluent_kafka
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from chronik.testing import Cluster
from tests.cluster.clients import DEADLINE_S, admin, create, producer
from tests.fuzz.watching import memory

PARTITIONS = 3
PRODUCERS = 4
CHANGERS = 8
VALUE = b"x" * 512
QUEUE_DEPTH = 4
"""So few appends may wait for the disk that every node is overloaded all the time."""
GROWTH_BYTES_MAX = 48 * 1024 * 1024
"""How much more a node may take in the last third than in the second: caches fill up, queues must not."""


class Sender(threading.Thread):
    """Sends as fast as it is let. Nothing is tried again, so every refusal shows."""

    def __init__(self, bootstrap: str, topic: str, until: float) -> None:
        super().__init__()
        self.topic = topic
        self.until = until
        self.acknowledged = 0
        self.errors: list[str] = []
        self.client = producer(bootstrap, retries=0, **{"queue.buffering.max.messages": 2_000})

    def run(self) -> None:
        while time.monotonic() < self.until:
            for partition in range(PARTITIONS):
                try:
                    self.client.produce(self.topic, VALUE, partition=partition, on_delivery=self._delivered)
                except BufferError:
                    self.client.poll(0.1)
            self.client.poll(0)
        self.client.flush(DEADLINE_S)

    def _delivered(self, error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(str(error))


class Creator(threading.Thread):
    """Creates one topic after the other, each within its deadline."""

    def __init__(self, bootstrap: str, topic: str, until: float) -> None:
        super().__init__()
        self.client = admin(bootstrap)
        self.topic = topic
        self.until = until
        self.took: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self.until:
            try:
                self.took.append(create(self.client, f"{self.topic}-{len(self.took)}"))
            except confluent_kafka.KafkaException as error:
                self.errors.append(str(error))


class Changer(threading.Thread):
    """Changes a topic's configuration again and again: metadata that takes no memory for good."""

    def __init__(self, bootstrap: str, topic: str, until: float) -> None:
        super().__init__()
        self.client = admin(bootstrap)
        self.topic = topic
        self.until = until
        self.count = 0
        self.errors: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self.until:
            value = str(100_000_000 + self.count % 2)
            entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
            wanted = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
            try:
                for future in self.client.incremental_alter_configs([wanted]).values():
                    future.result(DEADLINE_S)
                self.count += 1
            except confluent_kafka.KafkaException as error:
                self.errors.append(str(error))


def waits(cluster: Cluster, node_id: int) -> float:
    """How often a sender had to wait for the WAL of this node."""
    http = cluster.layout.node(node_id).peer.http
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=DEADLINE_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("chronik_wal_full_total "):
                return float(line.split()[-1])
    raise LookupError("the node counts no waits")


@pytest.mark.timeout(300)
def test_an_overload_refuses_nothing_drops_nothing_and_takes_no_memory(is_long: bool) -> None:
    seconds = 60 if is_long else 9
    with Cluster(nodes=3, can_partition=False, wal_queue_depth=QUEUE_DEPTH) as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS, replication_factor=3)
        began = time.monotonic()
        senders = [Sender(cluster.bootstrap, "orders", began + seconds) for _ in range(PRODUCERS)]
        creator = Creator(cluster.bootstrap, "made", began + seconds)
        changers = [Changer(cluster.bootstrap, "orders", began + seconds) for _ in range(CHANGERS)]
        for thread in (*senders, creator, *changers):
            thread.start()
        seen: dict[tuple[int, int], int] = defaultdict(int)
        while (passed := time.monotonic() - began) < seconds:
            for node_id in cluster.nodes:
                third = node_id, int(3 * passed / seconds)
                seen[third] = max(seen[third], memory(cluster.pid(node_id) or 0))
            senders[0].join(0.1)
        for thread in (*senders, creator, *changers):
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        acknowledged = sum(sender.acknowledged for sender in senders)
        rate, slowest = acknowledged / seconds, max(creator.took)
        changes = sum(changer.count for changer in changers)
        print(f"{rate:,.0f} msg/s, {len(creator.took)} topics, slowest {slowest:.2f} s, {changes} changes")
        print(dict(seen))
        assert [sender.errors for sender in senders] == [[]] * PRODUCERS
        assert creator.errors == []
        assert [changer.errors for changer in changers] == [[]] * CHANGERS
        assert all(changer.count for changer in changers)
        for node_id in cluster.nodes:
            assert waits(cluster, node_id) > 0, f"node {node_id} was not overloaded"
            growth = seen[node_id, 2] - seen[node_id, 1]
            assert growth < GROWTH_BYTES_MAX, f"node {node_id} grew by {growth:,} bytes"
        ends = [cluster.end_offsets("orders", partition) for partition in range(PARTITIONS)]
        assert sum(max(of_nodes.values()) for of_nodes in ends) == acknowledged
        cluster.assert_replicas_agree("orders")
