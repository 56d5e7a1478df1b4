"""Topics on three nodes: how soon they exist, and that they exist everywhere alike."""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid

import pytest

from chronik.testing import Cluster
from tests.cluster import clients
from tests.cluster.conftest import Figure


def test_topics_are_created_in_milliseconds(cluster: Cluster, topic: str, figure: Figure) -> None:
    admin = clients.admin(cluster.bootstrap)
    seconds = [clients.create(admin, f"{topic}-{number}") for number in range(30)]
    figure("a topic, p50", clients.median(seconds), 0.010)


def test_a_topic_is_visible_everywhere_at_once(cluster: Cluster, topic: str, figure: Figure) -> None:
    """S14: on every node within 100 ms of the answer; the last of the others' clients counts."""
    admin = clients.admin(cluster.bootstrap)
    slowest = 0.0
    for number in range(10):
        name = f"{topic}-{number}"
        clients.create(admin, name)
        took = max(
            clients.until(lambda name=name, node=node: cluster.is_led(name, node)) for node in cluster.nodes
        )
        slowest = max(slowest, took)
    figure("visible on all nodes, slowest", slowest, 0.1)


def test_100_topics_in_one_request(cluster: Cluster, topic: str, figure: Figure) -> None:
    names = [f"{topic}-{number}" for number in range(100)]
    took = clients.create(clients.admin(cluster.bootstrap), *names)
    figure("100 topics", took, 0.5)
    for node in cluster.nodes:
        clients.until(lambda node=node: set(names) <= clients.topics_on(cluster, node))


def test_100_topics_created_concurrently_over_http(cluster: Cluster, topic: str, figure: Figure) -> None:
    """S14: each call goes to another node than the one before; all are on all nodes soon after."""
    names = [f"{topic}-{number}" for number in range(100)]
    failures: list[str] = []

    def create(first: int) -> None:
        address = cluster.layout.node(cluster.nodes[first % 3]).peer.http
        assert address is not None
        connection = http.client.HTTPConnection(address.host, address.port, timeout=clients.DEADLINE_S)
        for name in names[first::10]:
            body = json.dumps({"name": name, "partitions": 1, "replication_factor": 3})
            connection.request("POST", "/admin/create-topic", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                failures.append(f"{name}: {answer.status} {text!r}")
        connection.close()

    began = time.monotonic()
    threads = [threading.Thread(target=create, args=(first,)) for first in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for node in cluster.nodes:
        clients.until(lambda node=node: set(names) <= clients.topics_on(cluster, node))
    figure("100 topics over HTTP, on all nodes", time.monotonic() - began, 1)


@pytest.mark.parametrize("via", [1, 2, 3])
def test_producing_to_a_topic_that_does_not_exist(cluster: Cluster, topic: str, via: int) -> None:
    """S12, S09: created on the way with the full replica list, whichever node was asked."""
    producer = clients.producer(cluster.bootstrap_of(via))
    producer.list_topics(timeout=clients.DEADLINE_S)
    seconds = [clients.send(producer, f"{topic}-{number}", b"first") for number in range(5)]
    print(f"p50 {clients.median(seconds) * 1000:.0f} ms")
    for number in range(5):
        assert sorted(cluster.replicas_of(f"{topic}-{number}")) == [1, 2, 3]
    cluster.assert_replicas_agree(*(f"{topic}-{number}" for number in range(5)))


def test_leaders_are_spread(cluster: Cluster, topic: str) -> None:
    """T06, T07: replicas are nodes that exist, and no node leads everything."""
    cluster.create_topic(topic, partitions=12, replication_factor=3)
    leaders = [cluster.leader_of(topic, number) for number in range(12)]
    assert {leaders.count(node) for node in cluster.nodes} == {4}
    for number in range(12):
        assert sorted(cluster.replicas_of(topic, number)) == [1, 2, 3]


def test_nodes_hold_the_same_topics(cluster: Cluster) -> None:
    """T05: three nodes once held 15, 4,695 and 882."""
    names = {f"same-{uuid.uuid4().hex[:8]}" for _ in range(30)}
    for name in names:
        cluster.create_topic(name, replication_factor=3)
    clients.until(lambda: all(names <= clients.topics_on(cluster, n) for n in cluster.nodes))
    clients.until(lambda: len({frozenset(clients.topics_on(cluster, n)) for n in cluster.nodes}) == 1)
