"""The files of a local cluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from chronik.config_file import ConfigError
from chronik.config_sources import load_settings
from chronik.local import ClusterLayout, FirstPorts, LayoutError, NodeProcess, ProcessFailed
from chronik.local.layout import ports_of, taken_port


def test_ports_as_in_the_manual() -> None:
    layout = ClusterLayout.new(Path("x"), 3, FirstPorts())
    assert [ports_of(peer) for peer in layout.peers] == [
        {"kafka": 9092, "wal": 9291, "raft": 5001, "http": 10001},
        {"kafka": 9093, "wal": 9292, "raft": 5002, "http": 10002},
        {"kafka": 9094, "wal": 9293, "raft": 5003, "http": 10003},
    ]


@pytest.mark.parametrize(("nodes", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2)])
def test_replicas_follow_the_number_of_nodes(nodes: int, replicas: int, in_sync: int) -> None:
    settings = ClusterLayout.new(Path("x"), nodes, FirstPorts()).settings
    assert (settings["replication_factor"], settings["min_insync_replicas"]) == (replicas, in_sync)


def test_a_node_can_be_started_from_the_file(tmp_path: Path) -> None:
    ClusterLayout.new(
        tmp_path, 3, FirstPorts(kafka=19092), wal_profile="ultra", auto_create_topics=False
    ).write()
    settings = load_settings({"node_id": "2"}, {}, tmp_path / "cluster.toml").settings
    assert (settings.kafka_port, settings.wal_port, settings.raft_port) == (19093, 9292, 5002)
    assert [peer.id for peer in settings.peers] == [1, 2, 3]
    assert settings.default_replication_factor == 3
    assert settings.min_insync_replicas == 2
    assert settings.wal_profile == "ultra"
    assert settings.auto_create_topics is False
    assert len(settings.cluster_secret or "") > 30


def test_what_was_written_is_read(tmp_path: Path) -> None:
    layout = ClusterLayout.new(tmp_path, 3, FirstPorts())
    layout.write()
    assert ClusterLayout.read(tmp_path) == layout
    assert layout.path.stat().st_mode & 0o077 == 0, "others could read the secret"


def test_two_clusters_have_two_secrets() -> None:
    one, other = (ClusterLayout.new(Path("x"), 1, FirstPorts()) for _ in range(2))
    assert one.settings["cluster_secret"] != other.settings["cluster_secret"]


def test_a_node_is_added_and_removed() -> None:
    layout = ClusterLayout.new(Path("x"), 3, FirstPorts())
    fourth = layout.next_peer()
    assert fourth.id == 4
    assert ports_of(fourth) == {"kafka": 9095, "wal": 9294, "raft": 5004, "http": 10004}
    grown = layout.with_node(fourth)
    assert [peer.id for peer in grown.without_node(1).peers] == [2, 3, 4]


def test_the_next_node_takes_no_port_of_another_kind() -> None:
    crowded = ClusterLayout.new(Path("x"), 3, FirstPorts(kafka=7000, wal=7003, raft=7006, http=7009))
    ports = [port for peer in (*crowded.peers, crowded.next_peer()) for port in ports_of(peer).values()]
    assert len(ports) == len(set(ports))


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="there is no cluster here: `chronik cluster up"):
        ClusterLayout.read(tmp_path)
    with pytest.raises(LayoutError, match="no node 9 in this cluster, its nodes are 1, 2"):
        ClusterLayout.new(tmp_path, 2, FirstPorts()).node(9)
    with pytest.raises(LayoutError, match="kafka port of node 2 would be 65536"):
        ClusterLayout.new(tmp_path, 2, FirstPorts(kafka=65535))
    (tmp_path / "cluster.toml").write_text("[[peers]]\nid = 1\n")
    with pytest.raises(ConfigError, match="lacks kafka"):
        ClusterLayout.read(tmp_path)


def test_a_taken_port_is_found() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        layout = ClusterLayout.new(Path("x"), 1, FirstPorts(kafka=port, wal=port, raft=port, http=port))
        assert taken_port(layout.peers) == (layout.peers[0], "kafka", port)


def test_a_node_that_does_not_run_cannot_be_signalled(tmp_path: Path) -> None:
    layout = ClusterLayout.new(tmp_path, 1, FirstPorts())
    process = NodeProcess(layout.node(1))
    assert not process.is_running
    with pytest.raises(ProcessFailed, match="node 1 does not run"):
        process.kill()


def test_a_pid_that_now_belongs_to_somebody_else_is_left_alone(tmp_path: Path) -> None:
    node = ClusterLayout.new(tmp_path, 1, FirstPorts()).node(1)
    node.data_dir.mkdir(parents=True)
    (node.data_dir / "lock").touch()
    node.pid_file.write_text("1\n")
    assert not NodeProcess(node).is_running


def test_racks_are_taken_in_turn_and_kept(tmp_path: Path) -> None:
    made = ClusterLayout.new(tmp_path, 5, FirstPorts(), ("a", "b", "c"))
    made.write()
    kept = ClusterLayout.read(tmp_path)
    assert [peer.rack for peer in kept.peers] == ["a", "b", "c", "a", "b"]
    assert kept.next_peer().rack == "c"
    second = load_settings({"node_id": "2"}, {}, kept.path)
    assert (second.settings.rack, second.origins["rack"]) == ("b", second.origins["kafka_port"])
    assert load_settings({"node_id": "2", "rack": "z"}, {}, kept.path).settings.rack == "z"
