"""All nodes are restarted one after the other under load, and no client notices more than a pause."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chronik.testing import Cluster
from tests.cluster.conftest import Figure
from tests.cluster.load import Load
from tests.cluster.test_http import call

PARTITIONS = 3
FALLBACK = {"CHRONIK_DISABLE_METADATA_WAL": "true"}


@pytest.mark.parametrize("fallback", [True, False], ids=["to the fallback", "to the fast path"])
@pytest.mark.timeout(300)
def test_a_rolling_restart_under_load_fails_no_produce(cluster: Cluster, topic: str, fallback: bool) -> None:
    """With default retries of the client. S19: nodes with and without the metadata WAL mix on the way."""
    env = FALLBACK if fallback else {"CHRONIK_DISABLE_METADATA_WAL": "false"}
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        load.wait_acked(20)
        for node_id in cluster.nodes:
            cluster.restart(node_id, env=env)
            load.wait_acked(10)
            # As an orchestrator does it: the next node is stopped when this one says that it is ready.
            cluster.wait_in_sync(node_id)
            assert all(node_id in cluster.isr_of(topic, p) for p in range(PARTITIONS))
        before = carried(cluster)
        cluster.create_topic(f"{topic}-more", partitions=PARTITIONS)
        load.wait_acked(10)
        after = carried(cluster)
        used, other = ("raft", "metadata") if fallback else ("metadata", "raft")
        for node_id in cluster.nodes:
            assert after[node_id][used]["bytes"] > before[node_id][used]["bytes"]
            assert after[node_id][other] == before[node_id][other]
    assert not load.failures
    print(f"{load.acked} acknowledged, longest pause {load.longest_pause():.2f} s")
    load.check()
    cluster.assert_replicas_agree(topic)


@pytest.mark.timeout(120)
def test_a_cluster_of_both_kinds_works_under_load(cluster: Cluster, topic: str) -> None:
    """S19: one node without the metadata WAL. Counters tell what each node sent over which port."""
    other = cluster.raft_status(1)["leader_id"]
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    try:
        with Load(cluster.bootstrap, topic, PARTITIONS) as load:
            load.wait_acked(20)
            cluster.restart(other, env=FALLBACK)
            cluster.wait_for(
                lambda: all(len(cluster.isr_of(topic, p)) == 3 for p in range(PARTITIONS)), "all are in sync"
            )
            before, fell_back = carried(cluster), fallbacks(cluster)
            for number in range(10):
                cluster.create_topic(f"{topic}-{number}", partitions=PARTITIONS)
            load.wait_acked(20)
            after, fell_back_since = carried(cluster), fallbacks(cluster)
    finally:
        cluster.restart(other, env={"CHRONIK_DISABLE_METADATA_WAL": "false"})
    assert not load.failures
    for node_id in cluster.nodes:
        used, unused = ("raft", "metadata") if node_id == other else ("metadata", "raft")
        assert after[node_id][used]["messages"] > before[node_id][used]["messages"]
        assert after[node_id][unused] == before[node_id][unused]
        # The metric follows the counters: only the node without the metadata WAL falls back.
        assert (fell_back_since[node_id] > fell_back[node_id]) == (node_id == other)
    sent = sum(after[one][to]["entries"] - before[one][to]["entries"] for one in after for to in after[one])
    assert sent >= 2 * 10, "ten topics, to both of the leader's followers"
    load.check()
    cluster.assert_replicas_agree(topic)


def carried(cluster: Cluster) -> dict[int, dict[str, dict[str, int]]]:
    """Appends and their answers that each node has sent, by link."""
    return {node_id: cluster.raft_status(node_id)["carried"] for node_id in cluster.nodes}


def fallbacks(cluster: Cluster) -> dict[int, float]:
    """What `/metrics` of each node says of messages that took the fallback."""
    found = {}
    for node_id in cluster.nodes:
        families = text_string_to_metric_families(call(cluster, node_id, "GET", "/metrics"))
        [found[node_id]] = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "chronik_metadata_messages_total" and sample.labels["path"] == "fallback"
        ]
    return found


@pytest.mark.timeout(120)
def test_a_stopping_node_hands_over_what_it_leads(cluster: Cluster, topic: str, figure: Figure) -> None:
    """Controlled shutdown: the pause is that of a leader change, not of a time-out."""
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    leader = cluster.leader_of(topic)
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        load.wait_acked(20)
        took = cluster.stop(leader)
        assert cluster.leader_of(topic) != leader
        load.wait_acked(10)
        cluster.start(leader)
        cluster.wait_for(lambda: leader in cluster.isr_of(topic), "it is in sync again")
    figure("to stop", took, 3)
    figure("longest pause", load.longest_pause(), 1.5)
    assert not load.failures
    load.check()
    cluster.assert_replicas_agree(topic)
