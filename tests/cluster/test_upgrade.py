"""From the release before to this one and back, node by node under load, until a person finalizes it.

Guards O02.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from chronik.metadata.levels import LEVEL_FIRST, LEVEL_LAST
from chronik.testing import Cluster
from tests.cluster.load import Load
from tests.node import SOURCE
from tools.previous_release import kept

PARTITIONS = 3


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment in which a node runs the release before (`tools/previous_release.py`)."""
    folder = tmp_path_factory.mktemp("previous")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--target", str(folder), str(kept())], check=True, timeout=120
    )
    return {"PYTHONPATH": str(folder)}


def upgrade(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chronik", "upgrade", *arguments, "--json", "-b", cluster.bootstrap],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def status(cluster: Cluster) -> dict[str, Any]:
    done = upgrade(cluster, "status")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


class Rolling:
    """Nodes are restarted one after the other, each with the release that it is told."""

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self.cluster = cluster
        self.load = load

    def to(self, env: Mapping[str, str], *node_ids: int) -> None:
        for node_id in node_ids or self.cluster.nodes:
            self.cluster.restart(node_id, env=env)
            self.load.wait_acked(5)
            self.cluster.wait_for(self._all_in_sync, "all are in sync")

    def _all_in_sync(self) -> bool:
        return all(len(self.cluster.isr_of(self.load.topic, p)) == 3 for p in range(PARTITIONS))


@pytest.mark.timeout(3_600)
def test_an_upgrade_and_the_way_back_lose_nothing(
    previous: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    """All nodes go back in each of `--upgrade-rounds`; without rounds one does, to be quick."""
    own = {"PYTHONPATH": str(SOURCE)}
    with Cluster(nodes=3, env=previous, replica_lag_time_max_ms=2_000) as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS, replication_factor=3)
        with Load(cluster.bootstrap, "orders", PARTITIONS) as load:
            load.wait_acked(20)
            rolling = Rolling(cluster, load)
            first, *others = cluster.nodes
            rolling.to(own, first)
            told = status(cluster)
            assert [node["levels"][1] for node in told["nodes"]] == [LEVEL_LAST, LEVEL_FIRST, LEVEL_FIRST]
            assert told["level"] == LEVEL_FIRST
            assert "is at level 1 already" in upgrade(cluster, "finalize", "--yes").stderr
            rolling.to(own, *others)
            rounds = request.config.getoption("--upgrade-rounds")
            for number in range(rounds or 1):
                cluster.create_topic(f"made-by-the-new-{number}", replication_factor=3)
                back = cluster.nodes if rounds else (first,)
                rolling.to(previous, *back)
                cluster.create_topic(f"made-by-the-old-{number}", replication_factor=3)
                rolling.to(own, *back)
            assert upgrade(cluster, "finalize", "--yes").returncode == 0
            assert status(cluster)["level"] == LEVEL_LAST
            load.wait_acked(10)
        assert not load.failures
        print(f"{load.acked} acknowledged, longest pause {load.longest_pause():.2f} s")
        load.check()
        cluster.assert_replicas_agree("orders")
