"""HTTP on three nodes: the same answers everywhere, topics seen at once, searches over all of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from chronik.admin.peers import request_json
from chronik.testing import Cluster

TOPICS = 100
DEADLINE_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, can_partition=False) as started:
        yield started


def address(cluster: Cluster, node_id: int) -> tuple[str, int]:
    http = cluster.layout.node(node_id).peer.http
    assert http is not None
    assert http.port is not None
    return http.host, http.port


def call(cluster: Cluster, node_id: int, method: str, path: str, body: object = None) -> Any:
    host, port = address(cluster, node_id)
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{host}:{port}{path}", data, method=method), timeout=30
    ) as answer:
        raw = answer.read()
    return json.loads(raw) if raw[:1] in b"{[" else raw.decode()


def names(cluster: Cluster, node_id: int) -> set[str]:
    return {topic["name"] for topic in call(cluster, node_id, "GET", "/admin/topics")}


def test_every_node_knows_the_same_leader(cluster: Cluster) -> None:
    found = [call(cluster, node, "GET", "/admin/raft-status") for node in cluster.nodes]
    assert len({one["leader_id"] for one in found}) == 1
    assert len({one["term"] for one in found}) == 1
    (leader,) = [one for one in found if one["node_id"] == one["leader_id"]]
    assert {follower["node_id"] for follower in leader["followers"]} == {1, 2, 3} - {leader["node_id"]}
    for node in cluster.nodes:
        reports = call(cluster, node, "GET", "/admin/nodes")["nodes"]
        assert [report["reachable"] for report in reports] == [True] * 3


@pytest.mark.parametrize("node", [1, 2, 3])
def test_a_topic_made_on_one_node_is_seen_on_the_others(cluster: Cluster, node: int) -> None:
    name = f"seen-{node}"
    began = time.monotonic()
    made = call(cluster, node, "POST", "/admin/create-topic", {"name": name, "partitions": 3})
    assert (made["partitions"], made["replication_factor"]) == (3, 3)
    for other in cluster.nodes:
        while name not in names(cluster, other):
            assert time.monotonic() - began < DEADLINE_S
    print(f"seen everywhere after {(time.monotonic() - began) * 1000:.0f} ms")
    views = [call(cluster, other, "GET", f"/admin/topics/{name}") for other in cluster.nodes]
    assert views[0] == views[1] == views[2]
    call(cluster, node, "DELETE", f"/admin/topics/{name}")


def test_a_record_is_explained_alike_by_every_node(cluster: Cluster) -> None:
    call(cluster, 1, "POST", "/admin/create-topic", {"name": "explained"})
    began_ms = time.time() * 1000 - 1
    call(cluster, 1, "POST", "/admin/topics/explained/messages", {"value": "v"})
    ended_ms = time.time() * 1000 + 1
    for node in cluster.nodes:
        found = call(cluster, node, "GET", "/admin/topics/explained/explain?partition=0&offset=0")
        replicas = found["replicas"]
        assert {one["node_id"] for one in replicas} == {1, 2, 3}
        assert [one["node_id"] for one in replicas if one["is_leader"]] == [found["reported_by"]]
        # The write was acknowledged by all in-sync replicas.
        assert [one["facts"]["has_record"] for one in replicas if one["is_in_sync"]] == [True] * 3
        assert all(one["facts"]["batch"] == found["batch"] for one in replicas), found
        assert [one["facts"]["wal"]["state"] for one in replicas] == ["held"] * 3
        acknowledged = [one["acknowledged"] for one in replicas if not one["is_leader"]]
        assert all(began_ms <= ack["by_ms"] <= ended_ms for ack in acknowledged), found
    call(cluster, 1, "DELETE", "/admin/topics/explained")


def test_a_hundred_topics_at_once_from_all_nodes(cluster: Cluster) -> None:
    wanted = {f"many-{n}" for n in range(TOPICS)}

    async def create(n: int) -> int:
        host, port = address(cluster, 1 + n % 3)
        body = json.dumps({"name": f"many-{n}"}).encode()
        status, _ = await request_json(host, port, "POST", "/admin/create-topic", body, {})
        return status

    async def create_all() -> list[int]:
        return list(await asyncio.gather(*(create(n) for n in range(TOPICS))))

    began = time.monotonic()
    assert set(asyncio.run(create_all())) == {200}
    for node in cluster.nodes:
        while not wanted <= names(cluster, node):
            assert time.monotonic() - began < DEADLINE_S
    print(f"{TOPICS} topics on all nodes after {time.monotonic() - began:.2f} s")


def counts(cluster: Cluster, node_id: int, histogram: str) -> dict[str, float]:
    """How much a histogram has counted, by the value of its label."""
    families = text_string_to_metric_families(call(cluster, node_id, "GET", "/metrics"))
    samples = [sample for family in families for sample in family.samples]
    return {
        next(iter(sample.labels.values())): sample.value
        for sample in samples
        if sample.name == f"{histogram}_count"
    }


def test_metrics_tell_of_metadata_writes(cluster: Cluster) -> None:
    """S06: every stage of a write, on the leader, until the followers have applied it."""

    def stages() -> Counter[str]:
        found: Counter[str] = Counter()
        for node_id in cluster.nodes:
            found.update(counts(cluster, node_id, "chronik_metadata_write_seconds"))
        return found

    before, numbers = stages(), itertools.count()

    def is_told() -> bool:
        call(cluster, 1, "POST", "/admin/create-topic", {"name": f"staged-{next(numbers)}"})
        added = stages() - before
        return added["followers"] >= 2 and set(added) == {"wal", "sent", "committed", "applied", "followers"}

    cluster.wait_for(is_told, "both followers have told that they applied something")
    text = call(cluster, cluster.controller(), "GET", "/metrics")
    assert 'chronik_metadata_messages_total{path="fallback"} 0.0' in text


def test_metrics_tell_how_soon_followers_know_a_watermark(cluster: Cluster) -> None:
    """S25: on the leader, for each of its followers."""
    cluster.create_topic("marked", replication_factor=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    leader = cluster.leader_of("marked")
    others = {str(node_id) for node_id in cluster.nodes if node_id != leader}
    name = "chronik_watermark_propagation_seconds"
    before = counts(cluster, leader, name)

    def is_told() -> bool:
        producer.produce("marked", b"x")
        assert producer.flush(DEADLINE_S) == 0
        after = counts(cluster, leader, name)
        return all(after.get(node_id, 0) > before.get(node_id, 0) for node_id in others)

    cluster.wait_for(is_told, "both followers have told that they know a watermark")
    text = call(cluster, leader, "GET", "/metrics")
    assert all(f'chronik_replication_lag_records{{follower="{node_id}"}}' in text for node_id in others)


def test_a_search_asks_every_partition_once_wherever_it_is_led(cluster: Cluster) -> None:
    config = {"searchable": True}
    call(cluster, 1, "POST", "/admin/create-topic", {"name": "orders", "partitions": 6, "config": config})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for n in range(3000):
        value = json.dumps({"n": n, "customer": ("ada", "grace", "linus")[n % 3]})
        producer.produce("orders", value.encode(), partition=n % 6)
    assert producer.flush(30) == 0
    body = {"query": {"term": {"customer": "ada"}}, "size": 5, "sort": [{"n": "asc"}], "refresh": True}
    for node in cluster.nodes:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            answer = call(cluster, node, "POST", "/orders/_search", body)
            if answer["_shards"]["failed"] == 0:
                break
            assert time.monotonic() < deadline
        assert answer["_shards"]["total"] == 6
        assert answer["hits"]["total"] == {"value": 1000, "relation": "eq"}
        assert [hit["_source"]["n"] for hit in answer["hits"]["hits"]] == [0, 3, 6, 9, 12]
        rows = call(cluster, node, "POST", "/_sql", {"query": "SELECT count(*), sum(n) FROM orders"})["rows"]
        assert rows == [[3000, sum(range(3000))]]
    leaders = {one["leader"] for one in call(cluster, 1, "GET", "/admin/topics/orders")["partitions"]}
    assert len(leaders) == 3
    for n in range(3000, 3012):
        producer.produce("orders", json.dumps({"n": n, "customer": "barbara"}).encode(), partition=n % 6)
        assert producer.flush(30) == 0
        found = {"query": {"match": {"customer": "barbara"}}, "size": 0}
        answer = call(cluster, 1 + n % 3, "POST", "/orders/_search", found)
        assert answer["lag"] > 0 or answer["hits"]["total"]["value"] == n - 2999, "committed, but not found"
