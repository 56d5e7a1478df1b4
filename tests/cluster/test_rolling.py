"""All nodes are restarted one after the other under load, and no client notices more than a pause."""

from __future__ import annotations

import pytest

from chronik.testing import Cluster
from tests.cluster.conftest import Figure
from tests.cluster.load import Load

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
            cluster.wait_for(
                lambda: all(len(cluster.isr_of(topic, p)) == 3 for p in range(PARTITIONS)), "all are in sync"
            )
            assert cluster.raft_status(node_id)["fast_path"] is not fallback
        cluster.create_topic(f"{topic}-more", partitions=PARTITIONS)
        load.wait_acked(10)
    assert not load.failures
    print(f"{load.acked} acknowledged, longest pause {load.longest_pause():.2f} s")
    load.check()
    cluster.assert_replicas_agree(topic)


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
