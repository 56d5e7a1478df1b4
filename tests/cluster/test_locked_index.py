"""Search never stands in the way of produce, on any node of a cluster (T25)."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

from chronik.testing import Cluster
from tests.query.load import orders, produce

LOCK = ".tantivy-writer.lock"


def index_locks(cluster: Cluster, topic: str) -> list[Path]:
    """Of every node that has an index of this topic."""
    places = (cluster.data_dir(node_id) / "query" / "index" for node_id in cluster.nodes)
    return [found / LOCK for place in places for found in place.glob(f"{topic}.*")]


def test_a_locked_index_fails_no_produce_on_any_node(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3, configs={"searchable": "true"})
    for partition in range(3):
        assert produce(cluster.bootstrap, topic, orders(10), partition=partition) == 10
    locks = cluster.wait_for(
        lambda: (found := index_locks(cluster, topic)) and len(found) == 3 and found, "an index on every node"
    )
    for node_id in cluster.nodes:
        cluster.stop(node_id)
    with contextlib.ExitStack() as held:
        for lock in locks:
            fcntl.flock(held.enter_context(lock.open("w")), fcntl.LOCK_EX)
        cluster.start()
        cluster.wait_ready()
        assert produce(cluster.bootstrap, topic, orders(300, 10)) == 300
        cluster.wait_for(
            lambda: any("indexing pauses" in cluster.log(node_id) for node_id in cluster.nodes), "a complaint"
        )
    cluster.assert_replicas_agree(topic)
