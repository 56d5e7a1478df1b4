"""§5.1: terms are a logical clock, and fence out whoever lags behind."""

from __future__ import annotations

import pytest

from chronik.model import PeerError
from chronik.raft import Entry, EntryKind, RoleName, decode, encode
from chronik.raft.messages import AppendEntries, Fence, Heartbeat, VoteRequest, VoteResponse
from tests.unit.raft.cluster import Cluster


def test_a_newer_term_turns_a_leader_into_a_follower() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[1].step(Fence(sender=2, to=1, term=9))
    assert cluster[1].role.name is RoleName.FOLLOWER
    assert (cluster[1].term, cluster[1].vote) == (9, None)


def test_a_leader_of_an_older_term_is_told_so() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    stale = AppendEntries(sender=3, to=2, term=0, prev_index=0, prev_term=0, commit=0)
    cluster[2].step(stale)
    cluster.drive(2)
    assert cluster.network == [Fence(sender=2, to=3, term=1)]
    assert cluster[2].leader_id == 1


def test_an_old_candidate_is_refused_with_the_newer_term() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[2].step(VoteRequest(sender=3, to=2, term=0, last_index=99, last_term=99))
    cluster.drive(2)
    assert cluster.network == [VoteResponse(sender=2, to=3, term=1, granted=False)]


def test_the_term_survives_a_restart() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.crash(2)
    cluster.restart(2)
    assert (cluster[2].term, cluster[2].vote) == (1, 1)


def test_the_term_of_the_log_counts_where_a_crash_lost_the_stored_one() -> None:
    """Both are written together, the entries first. Nothing was answered yet, so nobody has the vote."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[2].step(
        AppendEntries(
            sender=3,
            to=2,
            term=7,
            prev_index=1,
            prev_term=1,
            commit=1,
            entries=(Entry(term=7, index=2, kind=EntryKind.NOOP, data=b""),),
        )
    )
    disk = cluster.nodes[2].disk
    disk.write(cluster[2].ready())
    disk.sync(1)
    disk.lose_unsynced()
    cluster.restart(2)
    assert [entry.term for entry in disk.entries] == [1, 7]
    assert (cluster[2].term, cluster[2].vote) == (7, None)


def test_messages_for_somebody_else_are_refused() -> None:
    cluster = Cluster(1, 2, 3)
    with pytest.raises(PeerError):
        cluster[1].step(Heartbeat(sender=3, to=2, term=1, commit=0, round=0))
    with pytest.raises(PeerError):
        cluster[1].step(Heartbeat(sender=1, to=1, term=1, commit=0, round=0))


def test_messages_survive_their_bytes_and_garbage_does_not_pass() -> None:
    message = AppendEntries(sender=1, to=2, term=3, prev_index=4, prev_term=2, commit=1)
    assert decode(encode(message)) == message
    for garbage in (b"", b"\x00", b"\xc1", encode(message)[:-2], b"\x81\xa4type\xa3Foo"):
        with pytest.raises(PeerError):
            decode(garbage)


@pytest.mark.parametrize("order", [1, -1])
def test_unordered_sends_do_not_make_terms_explode(order: int) -> None:
    """Every message is delivered twice and in reverse; only an election may open a term (T13)."""
    cluster = Cluster(1, 2, 3, 4, 5, seed=7)
    for _ in range(300):
        for node_id in cluster.nodes:
            cluster.tick(node_id)
        if cluster.leader is not None:
            cluster.propose(cluster.leader, "x")
        for message in [*cluster.network, *cluster.network][::order]:
            cluster[message.to].step(message)
        cluster.network.clear()
        for node_id in cluster.nodes:
            cluster.drive(node_id)
    assert cluster.leader is not None
    assert cluster[cluster.leader].log.commit > 200
    assert max(core.term for core in map(cluster.__getitem__, cluster.nodes)) <= 3
