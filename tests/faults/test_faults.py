"""Real nodes, real clients, faults by a seed, the checker of the simulator; `make faults` in full length."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chronik.check import check, write_history
from chronik.testing import Cluster
from tests.faults.load import Load
from tests.faults.nemesis import Nemesis, SmallDisk

TOPIC = "history"
PARTITIONS = 3


@pytest.mark.timeout(0)
def test_no_anomaly_whatever_breaks(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seconds = float(request.config.getoption("--fault-seconds"))
    seed = request.config.getoption("--fault-seed")
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"\nfaults for {seconds:.0f} s by --fault-seed={seed}")
    small = {"wal_file_bytes": 1 << 20, "segment_bytes": 1 << 20}
    cluster = Cluster(3, folder=tmp_path / "cluster", replica_lag_time_max_ms=2_000, **small)
    disk = SmallDisk(cluster.data_dir(3))
    history = tmp_path / "history.jsonl"
    try:
        with cluster:
            cluster.create_topic(TOPIC, partitions=PARTITIONS, configs={"min.insync.replicas": "2"})
            load = Load(cluster.bootstrap, TOPIC, PARTITIONS)
            load.start(producers=2, consumers=2)
            nemesis = Nemesis(cluster, TOPIC, seed, disk)
            try:
                nemesis.run(seconds)
            finally:
                load.stop()
            try:
                cluster.assert_replicas_agree(TOPIC)
            finally:
                load.read_everything()
                history.write_bytes(b"".join(write_history(load.events)))
    finally:
        disk.close()
    verdict = check(load.events)
    print(f"{dict(nemesis.counts)}, sends {dict(verdict.outcomes)}, {verdict.records_read} records read")
    assert verdict.anomalies == [], f"by --fault-seed={seed}; `chronik check {history}` shows it again"
    assert verdict.outcomes["ok"] > 0
