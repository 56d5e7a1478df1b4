"""§7: log compaction, and snapshots for followers that lag behind it."""

from __future__ import annotations

import pytest

from chronik.model import InvariantViolated, PeerError
from chronik.raft import (
    Entry,
    EntryKind,
    HardState,
    Membership,
    ProgressState,
    RaftConfig,
    RaftCore,
    Snapshot,
)
from chronik.raft.messages import AppendEntries, InstallSnapshot, InstallSnapshotResponse
from tests.unit.raft.cluster import Cluster

MEMBERS = Membership((1, 2, 3), ())


def lagging() -> Cluster:
    """Node 3 missed entries that the leader no longer has."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    for text in "abc":
        cluster.propose(1, text)
        cluster.settle()
    cluster.nodes[1].compact()
    cluster.heal()
    return cluster


def test_a_follower_behind_the_log_gets_a_snapshot_and_then_entries() -> None:
    cluster = lagging()
    cluster.propose(1, "d")
    cluster.run(3)
    assert cluster.snapshots_installed == 1
    assert cluster.nodes[3].commands == list("abcd")
    assert cluster[1].status().followers[3].state is ProgressState.REPLICATE


def test_a_lost_snapshot_is_offered_again() -> None:
    cluster = lagging()
    cluster.tick(1)
    while not cluster.messages(InstallSnapshot):
        cluster.deliver()
    cluster.network.clear()
    assert cluster[1].status().followers[3].state is ProgressState.SNAPSHOT
    cluster.run(50)
    assert cluster.nodes[3].commands == []
    cluster.run(60)
    assert cluster.nodes[3].commands == list("abc")


def test_a_broken_connection_is_reason_enough_to_offer_it_again() -> None:
    cluster = lagging()
    cluster.tick(1)
    while not cluster.messages(InstallSnapshot):
        cluster.deliver()
    cluster.network.clear()
    cluster[1].report_unreachable(3)
    cluster.run(2)
    assert cluster.nodes[3].commands == list("abc")


def test_the_answer_waits_until_the_snapshot_is_durable() -> None:
    cluster = Cluster(1, 2, 3, auto_sync=False)
    snapshot = Snapshot(5, 1, MEMBERS, b"\x90")
    cluster[2].step(InstallSnapshot(sender=1, to=2, term=1, snapshot=snapshot))
    ready = cluster[2].ready()
    assert ready is not None
    assert ready.snapshot == snapshot
    assert ready.messages == ready.committed == ()
    assert not cluster[2].is_promotable
    cluster[2].persisted(ready.number)
    assert cluster[2].is_promotable
    ready = cluster[2].ready()
    assert ready is not None
    assert ready.messages == (InstallSnapshotResponse(sender=2, to=1, term=1, index=5),)


def test_a_snapshot_of_the_past_is_answered_and_ignored() -> None:
    cluster = lagging()
    cluster.run(3)
    commit = cluster[3].log.commit
    old = Snapshot(1, 1, MEMBERS, b"\x90")
    cluster[3].step(InstallSnapshot(sender=1, to=3, term=1, snapshot=old))
    cluster.drive(3)
    assert cluster.network == [InstallSnapshotResponse(sender=3, to=1, term=1, index=commit)]
    assert cluster.snapshots_installed == 1


def test_a_snapshot_that_the_log_agrees_with_keeps_the_log() -> None:
    cluster = Cluster(1, 2, 3)
    new = tuple(Entry(1, i, EntryKind.COMMAND, b"x") for i in (1, 2, 3))
    cluster[2].step(AppendEntries(sender=1, to=2, term=1, prev_index=0, prev_term=0, commit=0, entries=new))
    cluster[2].step(InstallSnapshot(sender=1, to=2, term=1, snapshot=Snapshot(2, 1, MEMBERS, b"\x90")))
    cluster.drive(2)
    assert cluster.snapshots_installed == 0
    assert (cluster[2].log.commit, cluster[2].log.last_index) == (2, 3)


def test_a_snapshot_from_the_future_is_refused() -> None:
    with pytest.raises(PeerError):
        Cluster(1, 2)[2].step(InstallSnapshot(sender=1, to=2, term=1, snapshot=Snapshot(5, 2, MEMBERS, b"")))


def test_compaction_beyond_what_is_applied_stops_the_node() -> None:
    cluster = Cluster(1)
    cluster.elect(1)
    with pytest.raises(InvariantViolated):
        cluster[1].compact(2)


def test_a_compacted_node_starts_again() -> None:
    cluster = lagging()
    cluster.crash(1)
    cluster.restart(1)
    assert (cluster[1].log.base.index, cluster[1].log.commit) == (4, 4)
    assert cluster.nodes[1].commands == list("abc")
    cluster.run(30)
    assert cluster.nodes[3].commands == list("abc")


def recover(snapshot: Snapshot, terms: list[int], first: int = 1) -> RaftCore:
    entries = [Entry(term, first + i, EntryKind.NOOP, b"") for i, term in enumerate(terms)]
    config = RaftConfig(node_id=1, voters=(1,), random_ticks=lambda n: 0)
    return RaftCore(config, hard_state=HardState(9, None, 0), snapshot=snapshot, entries=entries)


def test_a_crash_between_snapshot_and_log_is_sorted_out() -> None:
    snapshot = Snapshot(3, 2, MEMBERS)
    agrees = recover(snapshot, [1, 2, 2, 2, 2])
    assert (agrees.log.last_index, agrees.log.commit) == (5, 3)
    assert agrees.ready() is None
    for stale in ([1, 1], [1, 1, 1], [1, 1, 1, 1, 1]):
        core = recover(snapshot, stale)
        assert (core.log.last_index, core.log.last_term) == (3, 2)
        ready = core.ready()
        assert ready is not None
        assert ready.truncate_from == 1
    compacted = recover(snapshot, [2, 3], first=4)
    assert compacted.log.last_index == 5
    with pytest.raises(InvariantViolated):
        recover(snapshot, [2], first=5)


def test_acknowledged_entries_are_not_lost_to_an_unfinished_snapshot() -> None:
    """A node drops its log for a snapshot and crashes before that is durable: the log is still there."""
    cluster = lagging()
    core = cluster[3]
    before = list(cluster.nodes[3].disk.entries)
    cluster.auto_sync = False
    core.step(InstallSnapshot(sender=1, to=3, term=1, snapshot=cluster.nodes[1].disk.snapshot))  # type: ignore[arg-type]
    cluster.drive(3)
    assert core.log.base.index == 4
    cluster.crash(3)
    cluster.restart(3)
    assert cluster.nodes[3].disk.entries == before
    assert cluster[3].log.last_index == before[-1].index
