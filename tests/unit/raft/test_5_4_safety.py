"""§5.4: who may be elected, and what counts as committed."""

from __future__ import annotations

import pytest

from chronik.raft import Entry, EntryKind, HardState
from chronik.raft.messages import AppendEntries, VoteRequest, VoteResponse
from tests.unit.raft.cluster import Cluster


def store(cluster: Cluster, node_id: int, *terms: int, term: int) -> None:
    disk = cluster.nodes[node_id].disk
    disk.entries = [Entry(t, i + 1, EntryKind.COMMAND, f"{t}".encode()) for i, t in enumerate(terms)]
    disk.hard_state = HardState(term, None, 0)
    cluster.restart(node_id)


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(3, 2, True), (4, 2, True), (1, 3, True), (2, 2, False), (9, 1, False)],
)
def test_5_4_1_votes_go_only_to_logs_that_are_up_to_date(
    last_index: int, last_term: int, granted: bool
) -> None:
    cluster = Cluster(1, 2, 3)
    store(cluster, 2, 1, 2, 2, term=3)
    cluster[2].step(VoteRequest(sender=1, to=2, term=4, last_index=last_index, last_term=last_term))
    cluster.drive(2)
    assert cluster.network == [VoteResponse(sender=2, to=1, term=4, granted=granted)]


def test_5_4_1_a_node_that_lags_is_not_elected() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, "x")
    cluster.settle()
    cluster.crash(1)
    cluster.heal()
    cluster[3].campaign()
    cluster.drive(3)
    cluster.settle()
    cluster.run(25)
    assert cluster.leader == 2
    assert cluster.nodes[3].commands == ["x"]


def test_5_4_2_figure_8_entries_of_older_terms_are_not_committed_by_counting() -> None:
    """Entry 2 of term 2 is on a majority and must not count, since a log of term 3 can still win."""
    cluster = Cluster(1, 2, 3, 4, 5)
    store(cluster, 1, 1, 2, term=3)
    store(cluster, 2, 1, 2, term=3)
    store(cluster, 3, 1, term=3)
    store(cluster, 4, 1, term=3)
    store(cluster, 5, 1, 3, term=3)
    cluster.isolate(1, 2, 3)
    cluster[1].campaign()
    cluster.drive(1)
    # Hold back the new leader's own entry: only the old ones get through.
    while cluster.network:
        message = cluster.network[0]
        if isinstance(message, AppendEntries) and any(e.term == 4 for e in message.entries):
            old = tuple(e for e in message.entries if e.term < 4)
            cluster.network[0] = AppendEntries(
                **{
                    f: getattr(message, f)
                    for f in ("sender", "to", "term", "prev_index", "prev_term", "commit")
                },
                entries=old,
            )
        cluster.deliver()
    assert cluster[1].is_leader
    assert [cluster[n].log.term_at(2) for n in (1, 2, 3)] == [2, 2, 2]
    assert cluster[1].log.commit == 0
    # And indeed node 5 can be elected, and overwrites it.
    cluster.crash(1)
    cluster.heal()
    cluster.run(10)
    cluster[5].campaign()  # learns the term
    cluster.drive(5)
    cluster.settle()
    cluster.elect(5)
    assert [cluster[n].log.term_at(2) for n in (2, 3, 4, 5)] == [3, 3, 3, 3]


def test_5_4_2_the_own_entry_commits_all_before_it() -> None:
    cluster = Cluster(1, 2, 3)
    store(cluster, 1, 1, 2, term=3)
    store(cluster, 2, 1, 2, term=3)
    cluster.elect(1)
    assert cluster[1].log.commit == 3
    assert [e.term for e in cluster.nodes[1].applied] == [1, 2, 4]


def test_acknowledged_entries_survive_the_loss_of_any_one_disk_tail() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.auto_sync = False
    cluster.propose(1, "kept")
    while cluster.network:  # the followers store it, the leader never does
        cluster.deliver()
        cluster.sync(2)
        cluster.sync(3)
    assert cluster[1].log.commit == 2
    cluster.crash(1)
    cluster.auto_sync = True
    cluster.restart(1)
    assert cluster[1].log.last_index == 1
    cluster.elect(2)
    cluster.run(2)
    assert [node.commands for node in cluster.nodes.values()] == [["kept"]] * 3
