"""Replicas move between nodes, asked for with Apache Kafka's own tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronik.client import ClientOptions, Connection
from chronik.client.apis import Api
from chronik.client.options import BrokerAddress
from chronik.local.probe import ask_metadata
from chronik.model import ErrorCode
from chronik.testing import Cluster
from chronik.wire.api import ApiKey
from tests import java
from tests.cluster.load import Load

PARTITIONS = 8
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster(nodes=3, can_partition=False) as cluster:
        cluster.add_node()
        yield cluster


def plan(folder: Path, topic: str, targets: list[tuple[int, ...]]) -> str:
    partitions: list[dict[str, Any]] = [
        {"topic": topic, "partition": number, "replicas": list(target)}
        for number, target in enumerate(targets)
    ]
    path = folder / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def partitions(cluster: Cluster) -> list[Any]:
    """All partitions of the cluster, internal ones too."""
    found = cluster.run(ask_metadata(cluster.layout.node(1).peer.kafka, None)).topics
    return [one for topic in found for one in topic.partitions]


def move_without_tool(cluster: Cluster, asked: int, topic: str, target: tuple[int, ...]) -> None:
    """To a node that is down: the tool refuses that, the cluster waits for the node."""

    async def ask() -> Any:
        address = cluster.layout.node(asked).peer.kafka
        connection = await Connection.open(BrokerAddress(address.host, address.port or 0), ClientOptions())
        try:
            moved = [{"partition_index": 0, "replicas": target}]
            fields = {"timeout": 10_000, "topics": [{"name": topic, "partitions": moved}]}
            return await connection.request(Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1), fields)
        finally:
            connection.close()

    assert cluster.run(ask()).responses[0].partitions[0].error_code == ErrorCode.none


def held(cluster: Cluster, topic: str) -> list[tuple[int, ...]]:
    return [cluster.replicas_of(topic, number) for number in range(PARTITIONS)]


@pytest.mark.timeout(240)
def test_reassign_partitions_under_load_there_and_back(four: Cluster, tmp_path: Path) -> None:
    """A replica that left and came back holds what all others hold."""
    four.create_topic("orders", partitions=PARTITIONS, replication_factor=3)
    before = held(four, "orders")
    away = [(*(node for node in four.nodes if node not in replicas), *replicas[1:]) for replicas in before]
    with Load(four.bootstrap, "orders", PARTITIONS) as load:
        load.wait_acked(10)
        for targets in (away, before, away):
            path = plan(tmp_path, "orders", targets)
            tool = ("--bootstrap-server", four.bootstrap, "--reassignment-json-file", path)
            assert (
                "Successfully started partition reassignments" in java.run(REASSIGN, *tool, "--execute").out
            )
            four.wait_for(
                lambda tool=tool: "still in progress" not in java.run(REASSIGN, *tool, "--verify").out,
                "the reassignment is done",
            )
            told = java.run(REASSIGN, *tool, "--verify").out
            assert told.count("is completed.") == PARTITIONS, told
            assert held(four, "orders") == targets
            load.wait_acked(10)
    assert not load.failures
    print(f"{load.acked} acknowledged, longest pause {load.longest_pause():.2f} s")
    load.check()
    four.assert_replicas_agree("orders")
    for node in four.nodes:
        kept = {path.name for path in (four.data_dir(node) / "topics").glob("orders-*")}
        should = {f"orders-{number}" for number, target in enumerate(away) if node in target}
        four.wait_for(lambda kept=kept, should=should: kept <= should, f"node {node} drops its logs")


@pytest.mark.timeout(120)
def test_a_reassignment_is_listed_and_cancelled(four: Cluster, tmp_path: Path) -> None:
    four.create_topic("parked", partitions=1, replication_factor=3)
    before = four.replicas_of("parked")
    newcomer = next(node for node in four.nodes if node not in before)
    four.kill(newcomer)
    try:
        path = plan(tmp_path, "parked", [(newcomer, *before[1:])])
        tool = ("--bootstrap-server", four.bootstrap_of(before[1]), "--reassignment-json-file", path)
        move_without_tool(four, before[1], "parked", (newcomer, *before[1:]))
        listed = java.run(REASSIGN, "--bootstrap-server", four.bootstrap_of(before[1]), "--list").out
        assert f"parked-0: replicas: {newcomer}" in listed
        assert f"adding: {newcomer}. removing: {before[0]}." in listed
        told = java.run(REASSIGN, *tool, "--cancel", "--preserve-throttles").out
        assert "Successfully cancelled partition reassignment for: parked-0" in told
        assert set(four.replicas_of("parked")) == set(before)
    finally:
        four.start(newcomer)


@pytest.mark.timeout(120)
def test_preferred_leaders_are_elected(four: Cluster) -> None:
    four.create_topic("led", partitions=1, replication_factor=3)
    preferred = four.replicas_of("led")[0]
    four.kill(preferred)
    four.wait_for(lambda: four.leader_of("led") != preferred, "another node leads")
    other = four.leader_of("led")
    four.start(preferred)
    four.wait_for(lambda: preferred in four.isr_of("led"), "the preferred leader is in sync")
    tool = ("--bootstrap-server", four.bootstrap_of(other), "--topic", "led", "--partition", "0")
    told = java.run(ELECT, *tool, "--election-type", "preferred").out
    assert "led-0" in told
    assert four.leader_of("led") == preferred
    again = java.run(ELECT, *tool, "--election-type", "preferred").out
    assert "Valid replica already elected" in again


@pytest.mark.timeout(120)
def test_the_quorum_is_described_by_every_node(four: Cluster) -> None:
    """Three of the four vote, the fourth observes."""
    four.wait_for(
        lambda: any(four.raft_status(node)["role"] == "observer" for node in four.nodes), "one only observes"
    )
    leader = four.controller()
    for node in four.nodes:
        server = ("--bootstrap-server", four.bootstrap_of(node), "describe")
        status = java.run(QUORUM, *server, "--status").out
        assert f"LeaderId:{leader}" in status.replace(" ", "")
        for other in four.nodes:
            assert f'"id": {other}' in status
        lines = java.run(QUORUM, *server, "--replication").lines()[1:]
        roles = {int(line.split()[0]): line.split()[-1] for line in lines if line.strip()}
        assert roles.keys() == set(four.nodes)
        assert roles[leader] == "Leader"
        assert sorted(roles.values()) == ["Follower", "Follower", "Leader", "Observer"]


@pytest.mark.timeout(120)
def test_a_broker_that_is_gone_is_unregistered_and_comes_back(four: Cluster) -> None:
    four.kill(4)
    try:
        four.wait_for(lambda: 4 not in four.brokers_seen(1), "node 4 is fenced")
        server = ("--bootstrap-server", four.bootstrap_of(1))
        told = java.run(CLUSTER, "unregister", *server, "--id", "4").out
        assert "Broker 4 is no longer registered" in told
    finally:
        four.start(4)
    four.wait_for(lambda: 4 in four.brokers_seen(1), "node 4 is known again")


def unregister(cluster: Cluster, broker_id: int) -> ErrorCode:
    api = Api(ApiKey.UNREGISTER_BROKER, 0, 0)

    async def ask() -> Any:
        host, port = cluster.bootstrap_of(1).split(":")
        connection = await Connection.open(BrokerAddress(host, int(port)), ClientOptions())
        try:
            return await connection.request(api, {"broker_id": broker_id})
        finally:
            connection.close()

    return ErrorCode(cluster.run(ask()).error_code)


@pytest.mark.timeout(120)
def test_live_brokers_are_not_unregistered(four: Cluster) -> None:
    """T42: whoever may ask cannot empty the cluster."""
    assert {unregister(four, node) for node in four.nodes} == {ErrorCode.invalid_request}
    assert set(four.brokers_seen(1)) == set(four.nodes)


@pytest.mark.timeout(120)
def test_a_node_that_was_unregistered_while_it_was_paused_registers_again(four: Cluster) -> None:
    """T42: it runs, so it belongs to the cluster as soon as it hears that it does not."""
    four.pause(4)
    try:
        gone = four.wait_for(lambda: unregister(four, 4) == ErrorCode.none, "node 4 is unregistered")
        assert gone
    finally:
        four.resume(4)
    four.wait_for(lambda: 4 in four.brokers_seen(1), "node 4 is known again")
    four.wait_for(lambda: "it registered again" in four.log(4), "node 4 says so")


@pytest.mark.timeout(200)
def test_shares_are_even_after_a_rebalance(four: Cluster) -> None:
    for number in range(3):
        four.create_topic(f"even-{number}", partitions=PARTITIONS, replication_factor=2)
    four.rebalance()
    replicas = Counter(node for one in partitions(four) for node in one.replica_nodes)
    assert max(replicas.values()) - min(replicas[node] for node in four.nodes) <= 1

    def leaders() -> bool:
        led = Counter(one.leader_id for one in partitions(four))
        return max(led.values()) - min(led[node] for node in four.nodes) <= 1

    four.wait_for(leaders, "leaders are spread evenly")
    assert four.rebalance() == 0
