"""What only chronik is asked: the stages of a metadata write, and how soon followers know a watermark.

Nodes measure both themselves, by the leader's clock, and tell them as histograms.
"""

from __future__ import annotations

import math
import threading
import urllib.request
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from bench.cluster_loads import DEADLINE_S, Brokers, Results, admin_of, create, producer_of, send, settle
from chronik.testing import Cluster
from chronik.testing.replicas import ReplicasDiffer

STAGES = {
    "wal": "metadata in the leader's WAL",
    "sent": "metadata sent to followers",
    "committed": "metadata on a majority",
    "applied": "metadata applied where it was asked for",
    "followers": "metadata applied on a follower",
}
ULTRA = "metadata in the leader's WAL with the profile ultra"
SHARES = {"p50 ms": 0.5, "p99 ms": 0.99}
WATERMARK = "watermark known to a follower, p99 ms"
BESIDE_DATA = "metadata on a majority beside a flood of data, p99 ms"
FLOOD_BYTES = 64 * 1024
FLOODED_TOPICS_MAX = 200
"""Enough for a p99; the flood writes some 100 MB a second."""
DIFFERING = "replicas differ after all of that"
Buckets = dict[tuple[str, float], float]
"""Cumulative counts by label and upper bound."""


def inside(brokers: Brokers, count: int) -> Results:
    """Nothing for Apache Kafka, which has no such figures."""
    if not isinstance(brokers, Cluster):
        return {}
    return {**stages(brokers, count), **watermarks(brokers, count), **beside_data(brokers, count)}


def agreement(brokers: Brokers) -> Results:
    """End offsets, watermarks and bytes of every replica of what the loads wrote; the killed node is back."""
    if not isinstance(brokers, Cluster):
        return {}
    brokers.start()
    try:
        brokers.assert_replicas_agree()
    except ReplicasDiffer as error:
        print(error)
        return {DIFFERING: 1}
    return {DIFFERING: 0}


def stages(cluster: Cluster, count: int) -> Results:
    """Topics are created one by one (S06)."""
    metric, label = "chronik_metadata_write_seconds", "stage"
    before = scrape(cluster, metric, label)
    admin = admin_of(cluster)
    for number in range(count):
        create(admin, f"staged-{number}")
    after = scrape(cluster, metric, label)
    return {
        f"{figure}, {name}": quantile_ms(before, after, stage, share)
        for stage, figure in STAGES.items()
        for name, share in SHARES.items()
    }


def with_ultra(brokers: Brokers, count: int) -> Results:
    """The metadata log's own writes with the WAL profile `ultra` (S17). Nodes are as before afterwards."""
    if not isinstance(brokers, Cluster):
        return {}
    metric, label = "chronik_metadata_write_seconds", "stage"
    _restart_each(brokers, "ultra")
    try:
        before, admin = scrape(brokers, metric, label), admin_of(brokers)
        for number in range(count):
            create(admin, f"ultra-{number}")
        after = scrape(brokers, metric, label)
    finally:
        _restart_each(brokers, "high")
    return {f"{ULTRA}, {name}": quantile_ms(before, after, "wal", share) for name, share in SHARES.items()}


def _restart_each(cluster: Cluster, profile: str) -> None:
    for node_id in cluster.nodes:
        cluster.restart(node_id, env={"CHRONIK_WAL_PROFILE": profile})
        cluster.wait_in_sync(node_id)


def beside_data(cluster: Cluster, count: int) -> Results:
    """Topics are created one by one while the WAL of every node has more data than it can take (S16)."""
    create(admin_of(cluster), "flood", partitions=len(cluster.nodes))
    settle(cluster, "flood")
    is_over = threading.Event()

    def flood() -> None:
        producer = producer_of(cluster, acks="1", **{"queue.buffering.max.messages": 2_000})
        while not is_over.is_set():
            try:
                producer.produce("flood", bytes(FLOOD_BYTES))
            except BufferError:
                producer.poll(0.01)
        producer.flush(DEADLINE_S)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        metric, label = "chronik_metadata_write_seconds", "stage"
        before, admin = scrape(cluster, metric, label), admin_of(cluster)
        for number in range(min(count, FLOODED_TOPICS_MAX)):
            create(admin, f"beside-{number}")
        after = scrape(cluster, metric, label)
    finally:
        is_over.set()
        thread.join()
    return {BESIDE_DATA: quantile_ms(before, after, "committed", 0.99)}


def watermarks(cluster: Cluster, count: int) -> Results:
    """Records are written one by one with acks=all (S25)."""
    metric = "chronik_watermark_propagation_seconds"
    create(admin_of(cluster), "watermark")
    settle(cluster, "watermark")
    before = scrape(cluster, metric)
    producer = producer_of(cluster)
    for _ in range(count):
        send(producer, "watermark")
    return {WATERMARK: quantile_ms(before, scrape(cluster, metric), "", 0.99)}


def scrape(cluster: Cluster, metric: str, label: str = "") -> Buckets:
    """A histogram over all nodes, and over all labels but this one."""
    found: Buckets = defaultdict(float)
    for node_id in cluster.nodes:
        http = cluster.layout.node(node_id).peer.http
        with urllib.request.urlopen(f"http://{http}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"{metric}_bucket":
                    found[sample.labels.get(label, ""), float(sample.labels["le"])] += sample.value
    return found


def quantile_ms(before: Buckets, after: Buckets, label: str, share: float) -> float:
    """Of what was added between two scrapes."""
    added = {bound: count - before[name, bound] for (name, bound), count in after.items() if name == label}
    return 1000 * quantile({math.inf: 0.0, **added}, share)


def quantile(buckets: dict[float, float], share: float) -> float:
    """Out of cumulative counts by upper bound, evenly spread within a bucket (as Prometheus does)."""
    if not buckets[math.inf]:
        raise ValueError("a quantile of no samples")
    wanted = share * buckets[math.inf]
    lower, before = 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= wanted > before:
            return (
                lower
                if bound == math.inf
                else lower + (bound - lower) * (wanted - before) / (buckets[bound] - before)
            )
        lower, before = bound, buckets[bound]
    raise ValueError("counts that are not cumulative")
