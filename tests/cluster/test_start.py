"""Nodes come up in any order and at any pace, come back with all they knew, and let no stranger in."""

from __future__ import annotations

import itertools
import time

import pytest

from chronik.local.layout import write_config
from chronik.testing import Cluster
from tests.cluster import clients
from tests.cluster.conftest import Figure

LINKS = 3
"""Connections from one node to another: Raft, metadata, data."""
ORDERS = list(itertools.permutations((1, 2, 3)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every order in full length, else the one that people use and its reverse."""
    if "order" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("--cluster-long")
        metafunc.parametrize("order", ORDERS if is_long else [ORDERS[0], ORDERS[-1]], ids=str)


@pytest.mark.timeout(120)
def test_nodes_start_in_any_order_with_pauses(order: tuple[int, ...], figure: Figure) -> None:
    """S07, T03: acks=all works within two seconds once a majority is there, and the last one joins in."""
    cluster = Cluster(nodes=3, can_partition=False)
    try:
        first, second, third = order
        cluster.start(first, wait=False)
        cluster.wait_for(
            lambda: cluster.log(first).count("Failed to connect to follower") == LINKS * 2,
            "the first tries have failed",
        )
        cluster.start(second, wait=False)
        cluster.wait_for(
            lambda: cluster.bootstrap_of(second) and len(cluster.brokers_seen(second)) == 2,
            "both know each other",
        )
        began = time.monotonic()
        producer = clients.producer(cluster.bootstrap, **{"topic.metadata.refresh.fast.interval.ms": 50})
        admin = clients.admin(cluster.bootstrap_of(second))
        clients.create(admin, "early", replicas=2)
        clients.send(producer, "early", b"two of three")
        figure("acks=all after the quorum is up", time.monotonic() - began, 2)
        cluster.start(third)
        clients.create(admin, "late", partitions=3)
        for partition in range(3):
            clients.send(producer, "late", b"three of three", partition)
        assert len(cluster.isr_of("late")) == 3
        cluster.assert_replicas_agree("late")
    finally:
        cluster.close()


@pytest.mark.timeout(120)
def test_followers_keep_their_metadata_over_a_restart(cluster: Cluster, topic: str) -> None:
    """T22: without the node that led them, they still know every topic there was."""
    names = {f"{topic}-{number}" for number in range(20)}
    clients.create(clients.admin(cluster.bootstrap), *names)
    clients.until(lambda: all(names <= clients.topics_on(cluster, node) for node in cluster.nodes))
    controller = cluster.controller()
    followers = [node for node in cluster.nodes if node != controller]
    before = cluster.topic_names(followers[0])
    cluster.kill(*cluster.nodes)
    cluster.start(*followers)
    assert [cluster.topic_names(node) for node in followers] == [before, before]
    cluster.start(controller)
    assert cluster.topic_names(controller) == before


@pytest.mark.timeout(120)
def test_everything_is_there_after_all_nodes_died(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    producer = clients.producer(cluster.bootstrap)
    for number in range(300):
        producer.produce(topic, b"record %d" % number, partition=number % 3)
    assert producer.flush(30) == 0
    cluster.kill(*cluster.nodes)
    cluster.start()
    assert clients.count_records(cluster.bootstrap, topic, 300) == 300
    cluster.assert_replicas_agree(topic)


@pytest.mark.timeout(120)
def test_a_node_without_the_secret_is_refused(cluster: Cluster) -> None:
    """A stranger with the right addresses and somebody's id gets no further than the handshake."""
    settings = {**cluster.layout.settings, "cluster_secret": "another"}
    imposter = next(node for node in cluster.nodes if node != cluster.controller())
    others = [node for node in cluster.nodes if node != imposter]
    cluster.kill(imposter)
    cluster.wait_for(lambda: imposter not in cluster.brokers_seen(others[0]), "the others have noticed")
    config = cluster.folder / "imposter.toml"
    write_config(config, settings, cluster.layout.peers)
    stranger = cluster.disguised(imposter, config, cluster.folder / "imposter")
    stranger.start()
    try:
        cluster.wait_for(
            lambda: (
                any("secret" in cluster.log(node) for node in others) or "secret" in stranger.log_tail(50)
            ),
            "somebody says why",
        )
        assert imposter not in cluster.brokers_seen(others[0])
        assert not cluster.view(imposter).is_ready([imposter])
    finally:
        stranger.kill()


def test_a_node_that_waits_for_the_others_can_be_stopped() -> None:
    cluster = Cluster(nodes=3, can_partition=False)
    try:
        cluster.start(1, wait=False)
        cluster.wait_for(lambda: "Auto-discovered 2 followers" in cluster.log(1), "it looks for the others")
        cluster.stop(1)
    finally:
        cluster.close()


def test_a_config_for_other_ids_than_one_to_three(tmp_path: object) -> None:
    """T06: nothing may depend on the ids that examples use."""
    cluster = Cluster(nodes=3, first_id=7)
    with cluster:
        assert cluster.nodes == (7, 8, 9)
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        producer = clients.producer(cluster.bootstrap)
        for partition in range(3):
            clients.send(producer, "orders", b"x", partition)
            assert sorted(cluster.replicas_of("orders", partition)) == [7, 8, 9]
        cluster.assert_replicas_agree()
