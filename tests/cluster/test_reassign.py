"""`chronik topic reassign`: a plan is shown, nothing moves unasked, and in the end it is as planned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from chronik.testing import Cluster
from tests.node import SOURCE

PARTITIONS = 6


def reassign(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chronik", "topic", "reassign", *arguments, "-b", cluster.bootstrap],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.timeout(180)
def test_a_node_is_drained_and_gets_its_share_back(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=2)

    def held() -> list[int]:
        """How many replicas of the topic each node has."""
        replicas = [node for p in range(PARTITIONS) for node in cluster.replicas_of(topic, p)]
        return [replicas.count(node_id) for node_id in cluster.nodes]

    assert held() == [4, 4, 4]
    last = cluster.nodes[-1]
    unasked = reassign(cluster, topic, "--drain", str(last))
    assert unasked.returncode == 1
    assert "Move 4 partitions?" in unasked.stderr
    assert unasked.stdout.count(topic) == 4
    assert held() == [4, 4, 4]

    done = reassign(cluster, topic, "--drain", str(last), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    plan: list[dict[str, Any]] = json.loads(done.stdout)
    assert all(last in one["before"] and last not in one["after"] for one in plan)
    assert held() == [6, 6, 0]

    back = reassign(cluster, topic, "--yes")
    assert back.returncode == 0, back.stderr
    assert "moved" in back.stdout
    assert held() == [4, 4, 4]
    assert "nothing to move" in reassign(cluster, topic).stdout
    assert "nothing is on the move" in reassign(cluster, topic, "--cancel").stdout
    cluster.assert_replicas_agree(topic)
