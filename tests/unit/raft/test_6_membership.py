"""§6, and chapter 4 of the thesis: membership changes, one step at a time, learners first."""

from __future__ import annotations

import pytest

from chronik.model import RequestError, Unavailable
from chronik.raft import ChangeKind, ConfigChange, Membership, NotLeader, RoleName
from chronik.raft.messages import AppendEntries
from tests.unit.raft.cluster import Cluster


def change(cluster: Cluster, leader: int, kind: ChangeKind, node_id: int) -> int:
    index = cluster[leader].propose_config(ConfigChange(kind, node_id))
    cluster.drive(leader)
    return index


def elected(*node_ids: int) -> Cluster:
    cluster = Cluster(*node_ids)
    cluster.elect(1)
    return cluster


def test_a_new_node_learns_then_votes() -> None:
    cluster = elected(1, 2, 3)
    cluster.propose(1, "before")
    cluster.settle()
    cluster.add(4)
    change(cluster, 1, ChangeKind.ADD_LEARNER, 4)
    cluster.run(2)
    assert cluster[4].log.membership == Membership((1, 2, 3), (4,))
    assert cluster.nodes[4].commands == ["before"]
    assert cluster[1].status().followers[4].is_learner
    change(cluster, 1, ChangeKind.PROMOTE, 4)
    cluster.settle()
    assert {cluster[n].log.membership for n in cluster.nodes} == {Membership((1, 2, 3, 4), ())}


def test_a_learner_does_not_count_and_does_not_run() -> None:
    cluster = elected(1, 2, 3)
    cluster.add(4)
    change(cluster, 1, ChangeKind.ADD_LEARNER, 4)
    cluster.run(2)
    cluster.isolate(1, 4)
    index = cluster.propose(1, "x")
    cluster.settle()
    assert cluster[4].log.last_index == index
    assert cluster[1].log.commit < index
    cluster.isolate(4)
    cluster.tick(4, 100)
    assert cluster[4].role.name is RoleName.FOLLOWER


def test_a_node_without_members_waits() -> None:
    cluster = Cluster(1, voters=())
    cluster.tick(1, 100)
    cluster[1].campaign()
    assert cluster[1].role.name is RoleName.FOLLOWER


def test_only_one_change_at_a_time() -> None:
    cluster = elected(1, 2, 3)
    change(cluster, 1, ChangeKind.ADD_LEARNER, 4)
    assert cluster[1].status().is_config_pending
    with pytest.raises(Unavailable, match="not committed"):
        change(cluster, 1, ChangeKind.REMOVE, 3)
    cluster.settle()
    change(cluster, 1, ChangeKind.REMOVE, 3)


def test_no_change_before_the_term_has_committed_something() -> None:
    """The flaw of single-step changes that the thesis' author reported, and its cure."""
    cluster = Cluster(1, 2, 3)
    cluster.auto_sync = False
    cluster[1].campaign()
    cluster.drive(1)
    while not cluster[1].is_leader:
        for node_id in cluster.nodes:
            cluster.sync(node_id)
        cluster.deliver()
    with pytest.raises(Unavailable, match="not committed anything"):
        change(cluster, 1, ChangeKind.REMOVE, 3)


def test_a_learner_that_lags_is_not_promoted() -> None:
    cluster = elected(1, 2, 3)
    change(cluster, 1, ChangeKind.ADD_LEARNER, 4)
    cluster.settle()
    with pytest.raises(Unavailable, match="catching up"):
        change(cluster, 1, ChangeKind.PROMOTE, 4)


@pytest.mark.parametrize(
    ("kind", "node_id"),
    [
        (ChangeKind.ADD_LEARNER, 2),
        (ChangeKind.PROMOTE, 2),
        (ChangeKind.PROMOTE, 9),
        (ChangeKind.DEMOTE, 9),
        (ChangeKind.REMOVE, 9),
    ],
)
def test_senseless_changes_are_refused(kind: ChangeKind, node_id: int) -> None:
    cluster = elected(1, 2, 3)
    with pytest.raises(RequestError):
        change(cluster, 1, kind, node_id)


@pytest.mark.parametrize("kind", [ChangeKind.REMOVE, ChangeKind.DEMOTE])
def test_the_last_voter_stays(kind: ChangeKind) -> None:
    cluster = elected(1)
    with pytest.raises(RequestError, match="last voter"):
        change(cluster, 1, kind, 1)


def test_a_demoted_voter_observes() -> None:
    """It gets every entry, and neither counts nor runs."""
    cluster = elected(1, 2, 3, 4, 5)
    for observer in (4, 5):
        change(cluster, 1, ChangeKind.DEMOTE, observer)
        cluster.settle()
    assert {cluster[n].log.membership for n in cluster.nodes} == {Membership((1, 2, 3), (4, 5))}
    cluster.propose(1, "seen")
    cluster.settle()
    assert cluster.nodes[4].commands == ["seen"]
    with pytest.raises(RequestError):
        change(cluster, 1, ChangeKind.DEMOTE, 4)
    cluster.isolate(1, 4, 5)
    index = cluster.propose(1, "x")
    cluster.settle()
    assert cluster[4].log.last_index == cluster[5].log.last_index == index
    assert cluster[1].log.commit < index, "three of five have it, but one of three voters"
    cluster.heal()
    cluster.isolate(4)
    cluster.tick(4, 100)
    assert cluster[4].role.name is RoleName.FOLLOWER


def test_a_leader_that_is_demoted_hands_over_and_follows() -> None:
    cluster = elected(1, 2, 3)
    change(cluster, 1, ChangeKind.DEMOTE, 1)
    cluster.run(3)
    assert cluster.leader in (2, 3)
    assert cluster[1].log.membership == Membership((2, 3), (1,))
    cluster.propose(cluster.leader, "after")
    cluster.settle()
    assert cluster.nodes[1].commands == ["after"]


def test_only_the_leader_changes_members() -> None:
    cluster = elected(1, 2, 3)
    with pytest.raises(NotLeader):
        change(cluster, 2, ChangeKind.REMOVE, 3)


def test_a_removed_node_hears_of_it_and_stays_quiet() -> None:
    cluster = elected(1, 2, 3)
    change(cluster, 1, ChangeKind.REMOVE, 3)
    cluster.settle()
    assert cluster[3].log.membership == Membership((1, 2), ())
    assert cluster[3].log.commit == cluster[1].log.commit
    assert 3 not in cluster[1].status().followers
    cluster.run(50)
    assert cluster[3].role.name is RoleName.FOLLOWER
    assert cluster.leader == 1
    assert cluster[1].term == 1


def test_a_removed_node_that_did_not_hear_of_it_disturbs_nobody() -> None:
    cluster = elected(1, 2, 3)
    cluster.isolate(3)
    change(cluster, 1, ChangeKind.REMOVE, 3)
    cluster.run(20)
    cluster.heal()
    cluster.run(100)
    assert cluster[3].role.name in (RoleName.PRE_CANDIDATE, RoleName.FOLLOWER)
    assert cluster.leader == 1
    assert cluster[1].term == 1


def test_a_leader_that_removes_itself_leads_until_it_is_done_and_names_an_heir() -> None:
    cluster = elected(1, 2, 3)
    change(cluster, 1, ChangeKind.REMOVE, 1)
    assert cluster[1].is_leader
    cluster.settle()
    assert not cluster[1].is_leader
    assert cluster.leader in (2, 3)
    cluster.propose(cluster.leader, "on")
    cluster.run(2)
    assert cluster.nodes[2].commands == cluster.nodes[3].commands == ["on"]
    cluster.tick(1, 100)
    assert cluster[1].role.name is RoleName.FOLLOWER


def test_a_leader_that_removes_itself_does_not_count_itself() -> None:
    cluster = elected(1, 2, 3)
    cluster.isolate(1, 2)
    index = change(cluster, 1, ChangeKind.REMOVE, 1)
    cluster.settle()
    assert cluster[2].log.last_index == index
    assert cluster[1].log.commit < index  # one of {2, 3} is no majority


def test_a_membership_that_was_overwritten_is_undone() -> None:
    cluster = elected(1, 2, 3)
    cluster.isolate(1)
    change(cluster, 1, ChangeKind.ADD_LEARNER, 4)
    assert cluster[1].log.membership.learners == (4,)
    cluster.settle()
    cluster.run(25)
    cluster.heal()
    cluster.run(3)
    assert cluster.leader in (2, 3)
    assert cluster[1].log.membership == Membership((1, 2, 3), ())


def test_a_node_whose_removal_is_not_committed_can_still_complete_it() -> None:
    """Thesis §4.2.2: it has the longest log of those that are left, so nobody else can."""
    cluster = elected(1, 2)
    cluster.propose(1, "x")
    cluster.settle()
    cluster[1].propose_config(ConfigChange(ChangeKind.REMOVE, 1))
    cluster.drive(1)
    cluster.network.clear()
    cluster.crash(1)
    cluster.restart(1)
    cluster.run(40)
    assert cluster[2].log.membership == Membership((2,), ())
    assert cluster.leader == 2


def test_membership_survives_restart_and_snapshot() -> None:
    cluster = elected(1, 2, 3)
    change(cluster, 1, ChangeKind.REMOVE, 3)
    cluster.settle()
    for compact in (False, True):
        if compact:
            cluster.nodes[2].compact()
        cluster.crash(2)
        cluster.restart(2)
        assert cluster[2].log.membership == Membership((1, 2), ())


def test_adding_a_voter_raises_the_majority_at_once() -> None:
    cluster = elected(1, 2, 3)
    cluster.add(4)
    change(cluster, 1, ChangeKind.ADD_LEARNER, 4)
    cluster.run(2)
    change(cluster, 1, ChangeKind.PROMOTE, 4)
    cluster.network = cluster.messages(AppendEntries, to=2)
    cluster.isolate(3, 4)
    cluster.settle()
    assert cluster[1].status().is_config_pending  # 1 and 2 are no majority of four
    cluster.heal()
    cluster.run(2)
    assert not cluster[1].status().is_config_pending
