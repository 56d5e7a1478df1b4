"""Five nodes of which three vote: what the others being down costs, and who votes in place of whom (N02)."""

from __future__ import annotations

import pytest

from chronik.testing import Cluster

GONE_MS = 1_000


def voters(cluster: Cluster) -> set[int]:
    """As the leader knows them; empty while nobody leads."""
    for node in cluster.running:
        status = cluster.raft_status(node)
        if status["role"] == "leader":
            return {node, *(one["node_id"] for one in status["followers"] if one["is_voter"])}
    return set()


@pytest.mark.timeout(120)
def test_observers_do_not_count_until_they_are_needed() -> None:
    with Cluster(nodes=5, can_partition=False, voter_replace_ms=GONE_MS) as cluster:
        cluster.wait_for(lambda: len(voters(cluster)) == 3, "three of five vote")
        first = voters(cluster)
        observers = set(cluster.nodes) - first
        assert {cluster.raft_status(node)["role"] for node in observers} == {"observer"}
        # Three of five are down. Did all vote, nothing could be decided any more.
        lost = min(first - {cluster.controller()})
        for node in (*observers, lost):
            cluster.kill(node)
        # Until they are fenced, they count as live, and both replicas of a new topic may be put on them.
        cluster.wait_for(
            lambda: all(set(cluster.brokers_seen(node)) == set(cluster.running) for node in cluster.running),
            "the three are fenced",
        )
        cluster.create_topic("decided-by-two", replication_factor=2)
        # An observer that comes back votes in place of the voter that is gone for good.
        back = min(observers)
        cluster.start(back)
        cluster.wait_for(lambda: voters(cluster) == first - {lost} | {back}, "an observer took its place")
        assert "decided-by-two" in cluster.topic_names(back)
        # The one that was replaced comes back as an observer, and votes again when it is promoted.
        cluster.start(lost)
        cluster.wait_for(lambda: cluster.raft_status(lost)["role"] == "observer", "it observes")
        told = cluster.call_admin("/admin/promote-node", {"node_id": lost})
        assert told["message"] == f"Node {lost} votes on metadata."
        assert lost in voters(cluster)
        cluster.wait_for(lambda: len(voters(cluster)) == 3, "another one was demoted for it")
        cluster.call_admin("/admin/demote-node", {"node_id": lost})
        cluster.wait_for(
            lambda: len(voters(cluster)) == 3 and lost not in voters(cluster), "it observes again"
        )
