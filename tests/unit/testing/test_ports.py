"""Ports of nodes that do not listen yet."""

from __future__ import annotations

import pytest

from chronik.testing import Cluster, free_ports, ports
from chronik.testing.nodes import Nodes


def test_ports_that_were_given_out_are_not_given_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_HIGHEST", ports._LOWEST + 60 * ports._SHARES)
    given: set[int] = set()
    for _ in range(10):
        found = free_ports(2, given=given)
        assert given.isdisjoint(found)
        given.update(found)
    assert len(given) == 20


def test_ports_given_lately_are_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked for them may not listen yet."""
    monkeypatch.setattr(ports, "_HIGHEST", ports._LOWEST + 60 * ports._SHARES)
    assert len({port for _ in range(10) for port in free_ports(2)}) == 20


def test_no_two_nodes_of_a_cluster_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them listens while the others' ports are chosen: one node in hundreds could not start."""
    monkeypatch.setattr(ports, "_HIGHEST", ports._LOWEST + 60 * ports._SHARES)
    cluster: Nodes = Cluster(nodes=3)
    try:
        peers = [*cluster.layout.peers, *cluster._inside.values()]
        told = {address for peer in peers for address in (peer.kafka, peer.wal, peer.raft, peer.http)}
        assert len(told) == 3 * 6
    finally:
        cluster.close()
