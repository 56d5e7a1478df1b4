"""What only chronik is asked: the stages of a metadata write, and how soon followers know a watermark."""

from __future__ import annotations

import asyncio
import math
import time
import urllib.request
from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from bench.cluster_loads import Brokers, Results, admin_of, create, percentile, settle
from chronik.client import Cluster as Client
from chronik.client import Producer
from chronik.metrics import SECONDS
from chronik.model import TopicPartition
from chronik.testing import Cluster
from chronik.testing.replicas import ReplicaReader

STAGES = {
    "wal": "metadata in the leader's WAL, p99 ms",
    "sent": "metadata sent to followers, p99 ms",
    "committed": "metadata on a majority, p99 ms",
    "applied": "metadata applied where it was asked for, p99 ms",
}
BOUNDS = (*SECONDS, math.inf)
WATERMARK = "watermark on every replica after the answer, p99 ms"


def inside(brokers: Brokers, count: int) -> Results:
    """Nothing for Apache Kafka, which has no such figures."""
    if not isinstance(brokers, Cluster):
        return {}
    return {**stages(brokers, count), **watermarks(brokers, count)}


def stages(cluster: Cluster, count: int) -> Results:
    """Topics are created one by one; what that added to the histograms of all nodes (S06)."""
    before = scrape(cluster)
    admin = admin_of(cluster)
    for number in range(count):
        create(admin, f"staged-{number}")
    after = scrape(cluster)
    return {
        figure: 1000 * quantile({bound: after[stage, bound] - before[stage, bound] for bound in BOUNDS}, 0.99)
        for stage, figure in STAGES.items()
    }


def scrape(cluster: Cluster) -> dict[tuple[str, float], float]:
    """Cumulative counts of metadata writes by stage and upper bound, over all nodes."""
    found: dict[tuple[str, float], float] = defaultdict(float)
    for node_id in cluster.nodes:
        http = cluster.layout.node(node_id).peer.http
        with urllib.request.urlopen(f"http://{http}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "chronik_metadata_write_seconds_bucket":
                    found[sample.labels["stage"], float(sample.labels["le"])] += sample.value
    return found


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


def watermarks(cluster: Cluster, count: int) -> Results:
    """From the answer to acks=all until the slowest replica says that the record is committed (S25)."""
    tp = TopicPartition("watermark", 0)
    create(admin_of(cluster), tp.topic)
    settle(cluster, tp.topic)

    async def until_known(reader: ReplicaReader, offset: int) -> None:
        known = -1
        while known <= offset:
            known = (await reader.view(tp)).high_watermark

    async def measure() -> list[float]:
        taken = []
        peers = [cluster.layout.node(node_id).peer for node_id in cluster.nodes]
        readers = [await ReplicaReader.open(peer.kafka) for peer in peers]
        async with Client(cluster.bootstrap) as client, Producer(client) as producer:
            for _ in range(count):
                offset = await (await producer.send(tp.topic, b"x" * 100, partition=tp.partition))
                began = time.monotonic()
                await asyncio.gather(*(until_known(reader, offset) for reader in readers))
                taken.append(1000 * (time.monotonic() - began))
        for reader in readers:
            reader.close()
        return taken

    return {WATERMARK: percentile(cluster.run(measure()), 0.99)}
