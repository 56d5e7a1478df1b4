"""Who coordinates a group or a transaction, and who does so after it died."""

from __future__ import annotations

import time

import confluent_kafka
import pytest

from chronik.client import Cluster as Client
from chronik.client.apis import OFFSET_COMMIT, Api
from chronik.model import ErrorCode, NodeId
from chronik.testing import Cluster
from chronik.wire.api import ApiKey
from tests.cluster import clients


def coordinator(cluster: Cluster, group: str, node_id: NodeId) -> NodeId:
    """The coordinator of a group, as one node names it."""

    async def ask() -> NodeId:
        async with Client(cluster.bootstrap_of(node_id)) as client:
            found = await client.retry().run(lambda: client.coordinator("group", group))
            return NodeId(found)

    return cluster.run(ask())


def test_every_node_names_the_same_coordinator_and_not_itself(cluster: Cluster, topic: str) -> None:
    """T15: each node once answered with itself."""
    groups = [f"{topic}-{number}" for number in range(12)]

    def are_spread_and_agreed() -> bool:
        found = [{coordinator(cluster, group, node_id) for node_id in cluster.nodes} for group in groups]
        return all(len(named) == 1 for named in found) and len(set().union(*found)) > 1

    # After a kill all groups may have one home, until their partitions go back to their preferred leaders.
    cluster.wait_for(are_spread_and_agreed, "groups are spread, and all nodes agree")


def test_a_node_that_does_not_coordinate_a_group_says_so(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic)
    group = f"group-{topic}"
    committed = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}],
    }
    beat = {"group_id": group, "generation_id": 1, "member_id": "m"}

    async def ask(node_id: NodeId) -> tuple[ErrorCode, ErrorCode]:
        async with Client(cluster.bootstrap) as client:
            commit = await client.send(node_id, OFFSET_COMMIT, committed)
            heartbeat = await client.send(node_id, Api(ApiKey.HEARTBEAT, 0, 4), beat)
            return commit.topics[0].partitions[0].error_code, heartbeat.error_code

    def is_refused_by_all_others() -> bool:
        owner = coordinator(cluster, group, 1)
        answers = {node_id: cluster.run(ask(node_id)) for node_id in cluster.nodes}
        return answers.pop(owner) == (ErrorCode.none, ErrorCode.unknown_member_id) and set(
            answers.values()
        ) == {(ErrorCode.not_coordinator, ErrorCode.not_coordinator)}

    # A group may be on its way back to its preferred home, so that two questions hit two homes.
    cluster.wait_for(is_refused_by_all_others, "its coordinator serves the group, all others refuse")


def consumer(cluster: Cluster, group: str, **config: object) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "socket.timeout.ms": 3_000,
            "log_level": 0,
            **config,
        }
    )


def consume(member: confluent_kafka.Consumer, count: int, timeout_s: float = 45) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} records came"
        message = member.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
    return values


@pytest.mark.timeout(180)
def test_committed_offsets_survive_the_coordinators_death(cluster: Cluster, topic: str) -> None:
    """T16: after failover the new coordinator knows the group, also of an auto-created topic."""
    producer = clients.producer(cluster.bootstrap)
    for number in range(20):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(30) == 0
    group = f"group-{topic}"
    member = consumer(cluster, group)
    member.subscribe([topic])
    assert consume(member, 10) == [b"%d" % number for number in range(10)]
    member.commit(asynchronous=False)
    dead = coordinator(cluster, group, 1)
    cluster.kill(dead)
    try:
        survivor = next(node for node in cluster.nodes if node != dead)
        cluster.wait_for(
            lambda: coordinator(cluster, group, survivor) != dead, "another node coordinates the group"
        )
        member.close()
        second = consumer(cluster, group)
        second.subscribe([topic])
        assert consume(second, 10) == [b"%d" % number for number in range(10, 20)]
        second.commit(asynchronous=False)
        second.close()
    finally:
        cluster.start(dead)
    cluster.assert_replicas_agree(topic)


@pytest.mark.timeout(180)
def test_a_transaction_survives_its_coordinators_death(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3, replication_factor=3)
    producer = clients.producer(
        cluster.bootstrap,
        **{"transactional.id": topic, "transaction.timeout.ms": 30_000, "socket.timeout.ms": 3_000},
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, b"committed", partition=partition)
    producer.commit_transaction(30)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, b"over the death", partition=partition)
    producer.flush(30)
    dead = cluster.run(transaction_coordinator(cluster, topic))
    cluster.kill(dead)
    try:
        producer.commit_transaction(60)
        producer.begin_transaction()
        producer.produce(topic, b"aborted", partition=0)
        producer.flush(30)
        producer.abort_transaction(30)
    finally:
        cluster.start(dead)
    reader = consumer(cluster, f"group-{topic}", **{"isolation.level": "read_committed"})
    reader.subscribe([topic])
    assert sorted(consume(reader, 6)) == [b"committed"] * 3 + [b"over the death"] * 3
    reader.close()
    cluster.assert_replicas_agree(topic)


async def transaction_coordinator(cluster: Cluster, transactional_id: str) -> NodeId:
    async with Client(cluster.bootstrap) as client:
        found = await client.retry().run(lambda: client.coordinator("transaction", transactional_id))
        return NodeId(found)
