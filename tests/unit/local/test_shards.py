"""Which shards a machine runs, what they share, and how soon one that ends is started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.config_sources import Resolved, load_settings
from chronik.local.layout import ClusterLayout, LayoutError
from chronik.local.shards import holds_shards, shard_count, shard_layout
from chronik.local.supervisor import RESTART_SECONDS, RESTART_SECONDS_MAX, STEADY_SECONDS, Restarts


def settings(folder: Path, file: Path | None = None, **flags: object) -> Resolved:
    return load_settings({"data_dir": str(folder), **flags}, {"CHRONIK_WAL_PROFILE": "low"}, file)


def layout(resolved: Resolved, count: int) -> tuple[ClusterLayout, list[int]]:
    return shard_layout(resolved.settings, resolved.origins, count)


def test_auto_is_one_a_core() -> None:
    assert shard_count("auto", cores=16) == 16
    assert shard_count("3") == 3
    for wrong in ("0", "-1", "many", "1000"):
        with pytest.raises(LayoutError, match="neither auto nor a number"):
            shard_count(wrong)


def test_shards_have_ids_ports_and_directories_of_their_own_and_one_rack(tmp_path: Path) -> None:
    given = settings(tmp_path, node_id="5", kafka_port="7000", rack="r1", sql_memory_bytes_max=str(2**30))
    made, ids = layout(given, 4)
    assert ids == [5, 6, 7, 8]
    assert [peer.kafka.port for peer in made.peers] == [7000, 7001, 7002, 7003]
    assert {peer.rack for peer in made.peers} == {"r1"}
    folders = [node.folder.name for node in made.nodes]
    assert folders == ["shard-5", "shard-6", "shard-7", "shard-8"]
    assert made.settings["sql_memory_bytes_max"] == 2**28
    assert "wal_profile" not in made.settings, "variables reach the shards as they are"
    assert made.nodes[0].start_arguments()[-2:] == ["--shards", "1"]


def test_the_file_gives_a_shard_its_settings(tmp_path: Path) -> None:
    made, _ = layout(settings(tmp_path, default_partitions="7"), 2)
    made.write()
    read = load_settings({"node_id": "2", "shards": "1", "data_dir": "x"}, {}, made.path).settings
    assert (read.default_partitions, read.kafka_port, read.rack) == (7, 9093, made.peers[0].rack)
    assert read.cluster_secret
    assert len(read.peers) == 2


def test_a_second_start_finds_the_same_shards(tmp_path: Path) -> None:
    made, ids = layout(settings(tmp_path), 2)
    assert not holds_shards(tmp_path)
    made.write()
    assert holds_shards(tmp_path)
    assert layout(settings(tmp_path, kafka_port="9999"), 2) == (made, ids)
    with pytest.raises(LayoutError, match="holds 2 shards of this machine, not 3: say --shards 2"):
        layout(settings(tmp_path), 3)


def test_of_a_cluster_a_machine_runs_what_has_its_host_and_rack(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    entries = [(1, "m1", "a"), (2, "m1", "a"), (3, "m2", "b"), (4, "m2", "b"), (5, "m1", "c")]
    file.write_text(
        'cluster_secret = "s"\n'
        + "".join(
            f'[[peers]]\nid = {id}\nkafka = "{host}:{9000 + id}"\nwal = "{host}:{9100 + id}"\n'
            f'raft = "{host}:{9200 + id}"\nrack = "{rack}"\n'
            for id, host, rack in entries
        )
    )
    made, ids = layout(settings(tmp_path / "data", file, node_id="3"), 2)
    assert ids == [3, 4]
    assert len(made.peers) == 5
    assert made.settings["cluster_secret"] == "s"


def test_what_cannot_be_sharded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="ports that stay the same"):
        layout(settings(tmp_path, kafka_port="0"), 2)
    (tmp_path / "wal").mkdir()
    with pytest.raises(LayoutError, match="holds the data of a single node"):
        layout(settings(tmp_path), 2)


def test_a_shard_that_dies_again_and_again_waits_longer_each_time() -> None:
    restarts = Restarts()
    restarts.started(0.0)
    assert restarts.ended(5.0) == 5.0, "the first time at once"
    waits = []
    now = 5.0
    for _ in range(10):
        restarts.started(now)
        due = restarts.ended(now + 1)
        waits.append(due - now - 1)
        now = due
    assert waits[:4] == [RESTART_SECONDS, 1.0, 2.0, 4.0]
    assert waits[-1] == RESTART_SECONDS_MAX
    restarts.started(now)
    assert restarts.ended(now + STEADY_SECONDS) == now + STEADY_SECONDS, "it had run for long"
