"""What only chronik is asked: the stages of a metadata write, and how soon followers know a watermark.

Nodes measure both themselves, by the leader's clock, and tell them as histograms.
"""

from __future__ import annotations

import math
import urllib.request
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from bench.cluster_loads import Brokers, Results, admin_of, create, producer_of, send, settle
from chronik.metrics import SECONDS
from chronik.testing import Cluster
from chronik.testing.replicas import ReplicasDiffer

STAGES = {
    "wal": "metadata in the leader's WAL, p99 ms",
    "sent": "metadata sent to followers, p99 ms",
    "committed": "metadata on a majority, p99 ms",
    "applied": "metadata applied where it was asked for, p99 ms",
    "followers": "metadata applied on a follower, p99 ms",
}
BOUNDS = (*SECONDS, math.inf)
WATERMARK = "watermark known to a follower, p99 ms"
DIFFERING = "replicas differ after all of that"
Buckets = dict[tuple[str, float], float]
"""Cumulative counts by label and upper bound."""


def inside(brokers: Brokers, count: int) -> Results:
    """Nothing for Apache Kafka, which has no such figures."""
    if not isinstance(brokers, Cluster):
        return {}
    return {**stages(brokers, count), **watermarks(brokers, count)}


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
    return {figure: p99_ms(before, after, stage) for stage, figure in STAGES.items()}


def watermarks(cluster: Cluster, count: int) -> Results:
    """Records are written one by one with acks=all (S25)."""
    metric = "chronik_watermark_propagation_seconds"
    create(admin_of(cluster), "watermark")
    settle(cluster, "watermark")
    before = scrape(cluster, metric)
    producer = producer_of(cluster)
    for _ in range(count):
        send(producer, "watermark")
    return {WATERMARK: p99_ms(before, scrape(cluster, metric), "")}


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


def p99_ms(before: Buckets, after: Buckets, label: str) -> float:
    """Of what was added between two scrapes."""
    return 1000 * quantile({bound: after[label, bound] - before[label, bound] for bound in BOUNDS}, 0.99)


def quantile(buckets: dict[float, float], share: float) -> float:
    """Out of cumulative counts by upper bound, evenly spread within a bucket (as Prometheus does)."""
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
    return 0.0
