"""A leader's disk loses a bit of a sealed segment: readers miss nothing, and the file is whole again.

Guards R07.
"""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import ElectionType

from chronik.testing import Cluster
from tests.cluster.clients import DEADLINE_S, admin, producer, send
from tests.segments import flip_bit, segment_faults

RECORDS = 200


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while len(found) < RECORDS:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"only {len(found)} of {RECORDS} records came"
            if message.error() is None:
                found.append(message.value())
    finally:
        consumer.close()
    return found


def sealed(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))[:-1]


@pytest.mark.timeout(300)
def test_a_leader_with_a_damaged_segment_is_repaired_from_the_others(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, replication_factor=3, configs={"segment.bytes": "16384"})
    client = producer(cluster.bootstrap)
    values = [f"{number}:".encode().ljust(1000, b".") for number in range(RECORDS)]
    for value in values:
        send(client, topic, value)
    preferred = cluster.replicas_of(topic)[0]
    folder = cluster.data_dir(preferred) / "topics" / f"{topic}-0"
    cluster.stop(preferred)
    damaged = sealed(folder)[2]
    flip_bit(damaged, damaged.stat().st_size // 2)
    assert [path for path, _ in segment_faults(folder)] == [damaged]
    cluster.start(preferred)
    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 3, "all replicas are in sync")
    if cluster.leader_of(topic) != preferred:
        wanted = [confluent_kafka.TopicPartition(topic, 0)]
        electing = admin(cluster.bootstrap)
        electing.elect_leaders(ElectionType.PREFERRED, wanted).result(DEADLINE_S)
    cluster.wait_for(lambda: cluster.leader_of(topic) == preferred, "the damaged replica leads")

    assert read_all(cluster.bootstrap, topic) == values

    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 3, "the damaged replica is in sync again")
    cluster.assert_replicas_agree(topic)
    said = cluster.log(preferred)
    assert f"{topic}-0: {damaged} is damaged near byte" in said
    assert "repair 1 since the start" in said
    cluster.stop(preferred)
    assert sealed(folder)
    assert segment_faults(folder) == []
    cluster.start(preferred)
