"""§8 and thesis §6.4: linearizable reads; thesis §3.10: leadership transfer; status."""

from __future__ import annotations

import pytest

from chronik.model import RequestError, Unavailable
from chronik.raft import NotLeader, ProgressState, ReadResult, RoleName
from chronik.raft.messages import HeartbeatResponse, TimeoutNow
from tests.unit.raft.cluster import Cluster


def elected(*node_ids: int) -> Cluster:
    cluster = Cluster(*node_ids)
    cluster.elect(1)
    return cluster


def test_a_read_waits_for_a_majority_to_confirm_the_leader() -> None:
    cluster = elected(1, 2, 3)
    cluster[1].read_index(7)
    cluster.drive(1)
    assert cluster.nodes[1].reads == []
    cluster.settle()
    assert cluster.nodes[1].reads == [ReadResult(7, 1)]


def test_an_answer_to_an_older_heartbeat_confirms_nothing() -> None:
    cluster = elected(1, 2, 3)
    cluster.isolate(1)
    cluster[1].read_index(7)
    cluster.drive(1)
    cluster[1].step(HeartbeatResponse(sender=2, to=1, term=1, round=0))
    cluster.drive(1)
    assert cluster.nodes[1].reads == []
    cluster[1].step(HeartbeatResponse(sender=2, to=1, term=1, round=1))
    cluster.drive(1)
    assert cluster.nodes[1].reads == [ReadResult(7, 1)]


def test_a_deposed_leader_serves_no_read() -> None:
    cluster = elected(1, 2, 3)
    cluster.isolate(1)
    cluster[1].read_index(7)
    cluster.drive(1)
    cluster.run(30)
    assert cluster.nodes[1].reads == [ReadResult(7, None)]


def test_a_read_before_the_first_commit_of_the_term_waits_for_it() -> None:
    cluster = Cluster(1, auto_sync=False)
    cluster[1].campaign()
    cluster.drive(1)
    cluster.sync(1, 2)
    assert cluster[1].is_leader
    cluster[1].read_index(1)
    cluster.drive(1)
    assert cluster.nodes[1].reads == []
    cluster.sync(1)
    assert cluster.nodes[1].reads == [ReadResult(1, 1)]


def test_reads_of_one_turn_share_a_round() -> None:
    cluster = elected(1, 2, 3)
    for ctx in (1, 2, 3):
        cluster[1].read_index(ctx)
    cluster.drive(1)
    assert len(cluster.network) == 2
    cluster.settle()
    assert cluster.nodes[1].reads == [ReadResult(ctx, 1) for ctx in (1, 2, 3)]


def test_a_lost_round_is_made_good_by_the_next_heartbeat() -> None:
    cluster = elected(1, 2, 3)
    cluster[1].read_index(1)
    cluster.drive(1)
    cluster.network.clear()
    cluster.run(1)
    assert cluster.nodes[1].reads == [ReadResult(1, 1)]


def test_followers_do_not_confirm_reads() -> None:
    with pytest.raises(NotLeader):
        elected(1, 2, 3)[2].read_index(1)


def test_leadership_is_handed_over_within_the_lease() -> None:
    cluster = elected(1, 2, 3)
    cluster[1].transfer_leadership(3)
    cluster.drive(1)
    cluster.settle()
    assert cluster.leader == 3
    assert cluster[3].term == 2
    assert cluster[1].leader_id == 3


def test_the_heir_is_brought_up_to_date_first() -> None:
    cluster = elected(1, 2, 3)
    cluster.isolate(3)
    cluster.propose(1, "x")
    cluster.settle()
    cluster.heal()
    cluster[1].transfer_leadership(3)
    cluster.drive(1)
    assert cluster.messages(TimeoutNow) == []
    with pytest.raises(Unavailable, match="moving to node 3"):
        cluster.propose(1, "y")
    cluster.run(2)
    assert cluster.leader == 3
    assert cluster.nodes[3].commands == ["x"]


def test_a_transfer_to_a_dead_node_is_given_up() -> None:
    cluster = elected(1, 2, 3)
    cluster.crash(3)
    cluster.propose(1, "x")
    cluster.settle()
    cluster[1].transfer_leadership(3)
    assert cluster[1].status().transferee == 3
    cluster.run(10)
    assert cluster[1].status().transferee is None
    cluster.propose(1, "y")
    cluster.settle()
    assert cluster.nodes[2].commands == ["x", "y"]


def test_a_doubled_timeout_opens_one_term_only() -> None:
    cluster = elected(1, 2, 3)
    for _ in range(5):
        cluster[2].step(TimeoutNow(sender=1, to=2, term=1))
        cluster.drive(2)
    cluster.settle()
    assert cluster.leader == 2
    assert cluster[2].term == 2


def test_transfers_go_to_voters_only() -> None:
    cluster = elected(1, 2, 3)
    with pytest.raises(RequestError):
        cluster[1].transfer_leadership(9)
    cluster[1].transfer_leadership(1)
    assert cluster[1].status().transferee is None


def test_status_tells_where_everybody_stands() -> None:
    cluster = elected(1, 2, 3)
    cluster.isolate(3)
    cluster.propose(1, "x")
    cluster.settle()
    status = cluster[1].status()
    assert (status.role, status.term, status.leader_id, status.vote) == (RoleName.LEADER, 1, 1, 1)
    assert (status.commit, status.applied, status.durable, status.last_index) == (2, 2, 2, 2)
    assert (status.first_index, status.membership.voters) == (1, (1, 2, 3))
    assert {n: (f.match, f.next, f.state) for n, f in status.followers.items()} == {
        2: (2, 3, ProgressState.REPLICATE),
        3: (1, 3, ProgressState.REPLICATE),
    }
    assert cluster[2].status().followers == {}
