"""§5.2: leader election, with pre-vote (thesis §9.6) and durable votes."""

from __future__ import annotations

import dataclasses

import pytest

from chronik.raft import HardState, RoleName
from chronik.raft.messages import Fence, Heartbeat, PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse
from tests.unit.raft.cluster import Cluster


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_cluster_elects_one_leader(size: int) -> None:
    cluster = Cluster(*range(1, size + 1))
    cluster.run(12)
    assert cluster.leader == 1
    assert {cluster[n].leader_id for n in cluster.nodes} == {1}
    assert {cluster[n].term for n in cluster.nodes} == {1}


def test_a_minority_elects_nobody_and_opens_no_term() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.isolate(1)
    cluster.tick(1, 500)
    assert cluster[1].role.name is RoleName.PRE_CANDIDATE
    assert cluster[1].term == 0


def test_a_returning_node_does_not_unseat_the_leader() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(3)
    cluster.run(60)
    cluster.heal()
    cluster.run(5)
    assert cluster.leader == 1
    assert cluster[1].term == 1
    assert cluster[3].leader_id == 1


def test_heartbeats_keep_the_followers_quiet() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.run(100)
    assert cluster.leader == 1
    assert cluster[1].term == 1


def test_the_dead_leader_is_replaced() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.crash(1)
    cluster.run(12)
    assert cluster.leader == 2
    assert cluster[2].term == 2
    cluster.restart(1)
    cluster.run(2)
    assert cluster[1].leader_id == 2


def test_a_vote_leaves_only_when_it_is_durable() -> None:
    cluster = Cluster(1, 2, 3, auto_sync=False)
    cluster[2].step(VoteRequest(sender=1, to=2, term=1, last_index=0, last_term=0))
    cluster.drive(2)
    assert cluster.network == []
    cluster.sync(2)
    assert cluster.network == [VoteResponse(sender=2, to=1, term=1, granted=True)]


def test_a_vote_that_never_left_is_forgotten_and_a_durable_one_is_kept() -> None:
    cluster = Cluster(1, 2, 3, auto_sync=False)
    cluster[2].step(VoteRequest(sender=1, to=2, term=1, last_index=0, last_term=0))
    cluster.drive(2)
    cluster.crash(2)
    cluster.restart(2)
    cluster[2].step(VoteRequest(sender=3, to=2, term=1, last_index=0, last_term=0))
    cluster.drive(2)
    cluster.sync(2)
    assert cluster.network == [VoteResponse(sender=2, to=3, term=1, granted=True)]
    cluster.crash(2)
    cluster.restart(2)
    cluster[2].step(VoteRequest(sender=1, to=2, term=1, last_index=0, last_term=0))
    cluster.drive(2)
    assert cluster.network[1:] == [VoteResponse(sender=2, to=1, term=1, granted=False)]


def test_a_candidate_asks_only_when_its_own_vote_is_durable() -> None:
    cluster = Cluster(1, auto_sync=False)
    cluster[1].campaign()
    cluster.drive(1)
    assert cluster[1].role.name is RoleName.CANDIDATE
    cluster.sync(1)
    assert cluster[1].is_leader

    cluster = Cluster(1, 2, 3, auto_sync=False)
    cluster[1].campaign()
    cluster.drive(1)
    cluster.network.clear()
    cluster[1].step(PreVoteResponse(sender=2, to=1, term=1, granted=True))
    cluster.drive(1)
    assert cluster[1].role.name is RoleName.CANDIDATE
    assert cluster.network == []
    cluster.sync(1)
    assert [type(m) for m in cluster.network] == [VoteRequest, VoteRequest]


def test_one_vote_per_term() -> None:
    cluster = Cluster(1, 2, 3)
    for sender, granted in ((1, True), (3, False), (1, True)):
        cluster[2].step(VoteRequest(sender=sender, to=2, term=1, last_index=0, last_term=0))
        cluster.drive(2)
        assert cluster.network.pop() == VoteResponse(sender=2, to=sender, term=1, granted=granted)


def test_a_vote_in_a_term_that_is_durable_already_is_stored_too() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].step(Fence(sender=3, to=2, term=4))
    cluster.drive(2)
    assert cluster.nodes[2].disk.hard_state == HardState(4, None, 0)
    cluster[2].step(VoteRequest(sender=1, to=2, term=4, last_index=0, last_term=0))
    cluster.drive(2)
    assert cluster.nodes[2].disk.hard_state == HardState(4, 1, 0)
    assert cluster.network == [VoteResponse(sender=2, to=1, term=4, granted=True)]


def test_no_vote_against_a_leader_of_the_same_term() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].step(Heartbeat(sender=1, to=2, term=4, commit=0, round=0))
    cluster[2].step(VoteRequest(sender=3, to=2, term=4, last_index=9, last_term=3))
    cluster.drive(2)
    assert VoteResponse(sender=2, to=3, term=4, granted=False) in cluster.network


def test_a_grant_of_a_former_poll_does_not_count() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[1].step(Fence(sender=3, to=1, term=4))
    cluster[1].campaign()
    cluster[1].step(PreVoteResponse(sender=2, to=1, term=4, granted=True))
    assert cluster[1].role.name is RoleName.PRE_CANDIDATE
    cluster[1].step(PreVoteResponse(sender=2, to=1, term=5, granted=True))
    assert cluster[1].role.name is RoleName.CANDIDATE


def test_a_poll_is_refused_by_those_who_know_more() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.tick(2, 10)  # out of the lease
    cluster[2].step(PreVoteRequest(sender=3, to=2, term=2, last_index=0, last_term=0))
    cluster.drive(2)
    assert cluster.network == [PreVoteResponse(sender=2, to=3, term=1, granted=False)]


def test_who_hears_from_a_leader_ignores_candidates() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    vote = VoteRequest(sender=3, to=2, term=5, last_index=9, last_term=9)
    poll = PreVoteRequest(sender=3, to=2, term=5, last_index=9, last_term=9)
    for message in (vote, poll):
        cluster[2].step(message)
        cluster.drive(2)
        assert cluster.network == []
        assert cluster[2].term == 1
    cluster.tick(2, 10)  # the lease is over, the election time-out (11 for node 2) is not
    cluster[2].step(vote)
    cluster.drive(2)
    assert cluster.network == [VoteResponse(sender=2, to=3, term=5, granted=True)]


def test_who_knows_that_the_leader_is_dead_listens_to_candidates() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    poll = PreVoteRequest(sender=3, to=2, term=2, last_index=9, last_term=9)
    cluster[2].forget_leader()
    cluster[2].step(poll)
    cluster.drive(2)
    assert cluster.network == [PreVoteResponse(sender=2, to=3, term=2, granted=True)]
    assert (cluster[2].role.name, cluster[2].term) == (RoleName.FOLLOWER, 1)
    cluster.network.clear()
    cluster[2].step(Heartbeat(sender=1, to=2, term=1, commit=0, round=1))  # it lives after all
    assert cluster[2].leader_id == 1
    cluster.drive(2)
    cluster.network.clear()
    cluster[2].step(poll)
    cluster.drive(2)
    assert cluster.network == []


def test_who_forgets_its_leader_leaves_the_next_campaign_to_whoever_made_it_forget() -> None:
    """Its time-out may be nearly over. Campaigning out of turn would split the votes."""
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.tick(2, 10)
    cluster[2].forget_leader()
    cluster.tick(2, 10)
    assert cluster[2].role.name is RoleName.FOLLOWER
    cluster.tick(2, 10)
    assert cluster[2].role.name is RoleName.PRE_CANDIDATE


def test_a_follower_is_patient_with_a_leader_that_its_driver_watches() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[2].config = dataclasses.replace(cluster[2].config, patience_ticks=7)
    cluster.tick(2, cluster[2].election_timeout + 6)
    assert cluster[2].role.name is RoleName.FOLLOWER
    cluster.tick(2, 1)
    assert cluster[2].role.name is RoleName.PRE_CANDIDATE


def test_a_leader_does_not_forget_itself() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster[1].forget_leader()
    assert cluster[1].leader_id == 1


def test_a_pre_vote_changes_nothing() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].step(PreVoteRequest(sender=3, to=2, term=1, last_index=0, last_term=0))
    cluster[2].step(PreVoteRequest(sender=1, to=2, term=1, last_index=0, last_term=0))
    cluster.drive(2)
    assert [m.granted for m in cluster.network if isinstance(m, PreVoteResponse)] == [True, True]
    assert (cluster[2].term, cluster[2].vote) == (0, None)
    assert cluster.nodes[2].disk.hard_state is None


def test_a_leader_without_a_quorum_steps_down() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.elect(1)
    cluster.isolate(1)
    cluster.tick(1, 10)  # the answers before the cut still count
    cluster.tick(1, 10)
    assert cluster[1].role.name is RoleName.FOLLOWER
    assert cluster[1].term == 1
    assert cluster[1].leader_id is None


def test_a_leader_with_half_of_four_steps_down_and_with_three_stays() -> None:
    for together, stays in (((1, 2), False), ((1, 2, 3), True)):
        cluster = Cluster(1, 2, 3, 4)
        cluster.elect(1)
        cluster.isolate(*together)
        cluster.run(25)
        assert (cluster[1].is_leader and cluster[1].term == 1) is stays


def test_a_split_vote_ends_in_another_try() -> None:
    cluster = Cluster(1, 2)
    for node_id in (1, 2):
        cluster[node_id].campaign()
        cluster.drive(node_id)
    cluster.settle()
    assert cluster.leader is None
    cluster.run(25)
    assert cluster.leader is not None


def test_a_candidate_yields_to_the_leader_of_its_term() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.isolate(3)
    cluster[3].become_candidate(transfer=False)
    cluster.drive(3)
    cluster[3].step(Heartbeat(sender=1, to=3, term=1, commit=0, round=0))
    cluster.drive(3)
    assert cluster[3].role.name is RoleName.FOLLOWER
    assert cluster[3].leader_id == 1


def test_the_lowest_random_number_runs_first() -> None:
    cluster = Cluster(2, 5, 9)
    cluster.run(11)
    assert cluster.leader == 2
