"""§5.3: log replication: pipelined, windowed, and found again after any loss."""

from __future__ import annotations

import pytest

from chronik.model import InvariantViolated, PeerError, Unavailable
from chronik.raft import Entry, EntryKind, NotLeader, ProgressState
from chronik.raft.messages import AppendEntries, AppendResponse, Heartbeat
from tests.unit.raft.cluster import Cluster


def entries(*terms: int, start: int = 1) -> tuple[Entry, ...]:
    return tuple(Entry(term, start + i, EntryKind.COMMAND, b"x") for i, term in enumerate(terms))


def append(
    to: int,
    *,
    sender: int = 1,
    term: int,
    after: tuple[int, int] = (0, 0),
    commit: int = 0,
    new: tuple[Entry, ...] = (),
) -> AppendEntries:
    """`after`: index and term of the entry that must be there already."""
    return AppendEntries(
        sender=sender, to=to, term=term, prev_index=after[0], prev_term=after[1], commit=commit, entries=new
    )


def elected(*node_ids: int, **options: int) -> Cluster:
    cluster = Cluster(*node_ids, **options)
    cluster.elect(1)
    cluster.run(1)
    return cluster


def test_a_proposal_reaches_everybody_without_a_tick() -> None:
    cluster = elected(1, 2, 3)
    index = cluster.propose(1, "hello")
    assert {m.to for m in cluster.messages(AppendEntries)} == {2, 3}
    cluster.settle()
    for node in cluster.nodes.values():
        assert node.core.log.commit == index
        assert node.commands == ["hello"]


def test_only_the_leader_takes_proposals_and_others_say_who_that_is() -> None:
    cluster = elected(1, 2, 3)
    with pytest.raises(NotLeader) as refusal:
        cluster[2].propose(b"x")
    assert refusal.value.leader_hint == 1


def test_a_lone_voter_commits_when_its_disk_has_it() -> None:
    cluster = Cluster(1, auto_sync=False)
    cluster[1].campaign()
    cluster.drive(1)
    cluster.sync(1)
    cluster.sync(1)
    index = cluster.propose(1, "x")
    assert cluster[1].log.commit == index - 1
    cluster.sync(1)
    assert cluster[1].log.commit == index
    assert cluster.nodes[1].commands == ["x"]


def test_the_leader_does_not_count_itself_before_its_disk_does() -> None:
    cluster = elected(1, 2, 3)
    cluster.auto_sync = False
    cluster.isolate(3)
    index = cluster.propose(1, "x")
    while cluster.network:  # 2 stores and answers, 1 has not stored yet
        cluster.deliver()
        cluster.sync(2)
    assert cluster[1].role.progress[2].match == index  # type: ignore[attr-defined]
    assert cluster[1].log.commit == index - 1
    cluster.sync(1)
    assert cluster[1].log.commit == index


def test_followers_alone_can_commit_but_the_leader_applies_only_what_it_stored() -> None:
    cluster = elected(1, 2, 3)
    cluster.auto_sync = False
    index = cluster.propose(1, "x")
    while cluster.network:
        cluster.deliver()
        cluster.sync(2)
        cluster.sync(3)
    assert cluster[1].log.commit == index
    assert cluster.nodes[1].commands == []
    cluster.sync(1)
    assert cluster.nodes[1].commands == ["x"]


def test_a_follower_acknowledges_only_what_is_durable() -> None:
    cluster = Cluster(1, 2, 3, auto_sync=False)
    cluster[2].step(append(2, term=1, new=entries(1)))
    cluster.drive(2)
    cluster[2].step(append(2, term=1, after=(1, 1), new=entries(1, start=2)))
    cluster.drive(2)
    assert cluster.network == []
    cluster.sync(2, 3)  # hard state, first entry, end of the first Ready
    assert [m.index for m in cluster.messages(AppendResponse)] == [1]
    cluster[2].step(append(2, term=1, new=entries(1)))  # known, yet a second one is on its way
    cluster.drive(2)
    assert len(cluster.network) == 1
    cluster.sync(2)
    assert [m.index for m in cluster.messages(AppendResponse)] == [1, 2, 1]


def test_a_report_for_overwritten_entries_counts_for_what_is_left_of_them() -> None:
    cluster = Cluster(1, 2, 3, auto_sync=False)
    core = cluster[2]
    core.step(append(2, term=1, new=entries(1, 1, 1)))
    cluster.drive(2)
    core.step(append(2, sender=3, term=2, after=(1, 1), new=entries(2, 2, start=2)))
    cluster.drive(2)
    cluster.sync(2, 5)  # all of the first Ready
    assert core.log.durable == 1
    assert cluster.network == []  # the first leader's acknowledgement is void
    cluster.sync(2)
    assert core.log.durable == 3
    assert [m.to for m in cluster.network] == [3]
    assert [e.term for e in cluster.nodes[2].disk.entries] == [1, 2, 2]


@pytest.mark.parametrize(
    ("follower", "name"),
    [
        ((1, 1, 1, 4, 4, 5, 5, 6, 6), "a: misses the last"),
        ((1, 1, 1, 4), "b: misses many"),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6), "c: has one too many"),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7), "d: has a later term"),
        ((1, 1, 1, 4, 4, 4, 4), "e: both"),
        ((1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3), "f: lived in other terms"),
        ((), "nothing"),
    ],
)
def test_figure_7_any_follower_is_brought_in_line(follower: tuple[int, ...], name: str) -> None:
    from chronik.raft import HardState

    leader_log = entries(1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
    cluster = Cluster(1, 2, 3)
    for node_id, stored in ((1, leader_log), (2, entries(*follower)), (3, ())):
        disk = cluster.nodes[node_id].disk
        disk.entries, disk.hard_state = list(stored), HardState(7, None, 0)
        cluster.restart(node_id)
    if follower and follower[-1] == 7:
        cluster.isolate(2)  # d would not vote for this leader
    cluster.elect(1)
    cluster.heal()
    cluster.run(3)
    expected = [e.term for e in cluster.nodes[1].disk.entries]
    assert [e.term for e in cluster.nodes[2].disk.entries] == expected, name
    assert expected[:-1] == [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]


def test_the_conflict_hint_skips_whole_terms() -> None:
    """Leader with a long tail of term 3, follower with one of term 2: not one step per entry."""
    from chronik.raft import HardState

    cluster = Cluster(1, 2, 3)
    for node_id, stored in ((1, entries(1, *[3] * 50)), (2, entries(1, *[2] * 50)), (3, entries(1))):
        disk = cluster.nodes[node_id].disk
        disk.entries, disk.hard_state = list(stored), HardState(3, None, 0)
        cluster.restart(node_id)
    rejections: list[str] = []
    cluster.log = lambda line: rejections.append(line) if "rejected" in line else None
    cluster.elect(1)
    cluster.run(3)
    assert cluster[2].log.last_index == cluster[1].log.last_index
    assert len([line for line in rejections if line.startswith("2->")]) <= 2


def test_lost_appends_are_found_by_the_next_heartbeat() -> None:
    cluster = elected(1, 2, 3)
    for text in "abc":
        cluster.propose(1, text)
        cluster.network.clear()
    cluster.run(2)
    assert cluster.nodes[2].commands == cluster.nodes[3].commands == ["a", "b", "c"]


def test_appends_are_pipelined_up_to_the_window() -> None:
    cluster = elected(1, 2, 3, max_inflight=4)
    for text in "abcdefg":
        cluster.propose(1, text)
    sent = [m for m in cluster.messages(AppendEntries, to=2) if m.entries]  # type: ignore[union-attr]
    assert len(sent) == 4
    assert cluster[1].status().followers[2].inflight == 4
    cluster.settle()
    assert cluster.nodes[2].commands == list("abcdefg")
    assert cluster[1].status().followers[2].inflight == 0


def test_the_window_counts_bytes_too() -> None:
    cluster = elected(1, 2, 3, max_inflight_bytes=100)
    for _ in range(5):
        cluster.propose(1, "x" * 40)
    sent = [m for m in cluster.messages(AppendEntries, to=2) if m.entries]  # type: ignore[union-attr]
    assert len(sent) == 2


def test_a_full_window_whose_answers_were_lost_opens_again() -> None:
    cluster = elected(1, 2, 3, max_inflight=2)
    cluster.isolate(2)
    for text in "abcd":
        cluster.propose(1, text)
    cluster.settle()
    cluster.heal()
    cluster.run(3)
    assert cluster.nodes[2].commands == list("abcd")


def test_proposals_of_one_turn_share_an_append() -> None:
    cluster = elected(1, 2, 3)
    for text in (b"a", b"b", b"c"):
        cluster[1].propose(text)
    cluster.drive(1)
    [message] = cluster.messages(AppendEntries, to=2)
    assert isinstance(message, AppendEntries)
    assert [e.data for e in message.entries] == [b"a", b"b", b"c"]


def test_an_append_is_limited_in_size() -> None:
    cluster = elected(1, 2, 3, max_append_bytes=50)
    for _ in range(3):
        cluster[1].propose(b"x" * 30)
    cluster.drive(1)
    sent = cluster.messages(AppendEntries, to=2)
    assert [len(m.entries) for m in sent if isinstance(m, AppendEntries)] == [1, 1, 1]


def test_too_many_uncommitted_bytes_are_refused_until_some_commit() -> None:
    cluster = elected(1, 2, 3, max_uncommitted_bytes=100)
    cluster.propose(1, "x" * 60)
    with pytest.raises(Unavailable):
        cluster.propose(1, "x" * 60)
    cluster.settle()
    cluster.propose(1, "x" * 60)


def test_unreachable_peers_are_probed() -> None:
    cluster = elected(1, 2, 3)
    cluster.propose(1, "a")
    cluster.network.clear()
    assert cluster[1].status().followers[2].state is ProgressState.REPLICATE
    cluster[1].report_unreachable(2)
    cluster.drive(1)
    assert cluster[1].status().followers[2].state is ProgressState.PROBE
    cluster.settle()
    assert cluster.nodes[2].commands == ["a"]


def test_truncation_is_told_to_the_disk() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].step(append(2, term=1, new=entries(1, 1, 1)))
    cluster.drive(2)
    cluster[2].step(append(2, sender=3, term=2, after=(1, 1), new=entries(2, start=2)))
    cluster.drive(2)
    assert [e.term for e in cluster.nodes[2].disk.entries] == [1, 2]


def test_what_was_never_handed_out_needs_no_truncation() -> None:
    cluster = Cluster(1, 2, 3)
    core = cluster[2]
    core.step(append(2, term=1, new=entries(1, 1, 1)))
    core.step(append(2, sender=3, term=2, after=(1, 1), new=entries(2, start=2)))
    ready = core.ready()
    assert ready is not None
    assert ready.truncate_from is None
    assert [e.term for e in ready.entries] == [1, 2]


def test_an_old_append_does_not_truncate_newer_entries() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].step(append(2, term=1, new=entries(1, 1, 1)))
    cluster[2].step(append(2, term=1, new=entries(1)))
    assert cluster[2].log.last_index == 3


def test_an_old_append_is_answered_with_what_is_committed() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].step(append(2, term=1, new=entries(1, 1, 1), commit=3))
    cluster.drive(2)
    cluster.nodes[2].compact()
    cluster.network.clear()
    cluster[2].step(append(2, term=1, after=(1, 1), new=entries(1, start=2)))
    cluster.drive(2)
    assert cluster.network == [AppendResponse(sender=2, to=1, term=1, index=3)]


def test_a_lost_probe_is_sent_again() -> None:
    cluster = elected(1, 2, 3)
    cluster[1].report_unreachable(2)
    for _ in range(2):
        cluster.propose(1, "a")
        cluster.network.clear()
    assert cluster[1].status().followers[2].state is ProgressState.PROBE
    cluster.run(1)
    assert cluster[1].status().followers[2].state is ProgressState.REPLICATE
    assert cluster.nodes[2].commands == ["a", "a"]


def test_a_rejection_of_something_acknowledged_since_is_ignored() -> None:
    cluster = elected(1, 2, 3)
    cluster.propose(1, "a")
    cluster.settle()
    late = AppendResponse(sender=2, to=1, term=1, index=1, rejected=True, hint_index=0, hint_term=0)
    cluster[1].step(late)
    assert cluster[1].status().followers[2].state is ProgressState.REPLICATE


@pytest.mark.parametrize(
    "message",
    [
        append(2, term=1, new=entries(1, start=2)),
        append(2, term=1, new=entries(2)),
        append(2, term=2, new=(*entries(2), *entries(1, start=2))),
        append(2, term=1, after=(1, 3)),
        append(2, term=1, new=(Entry(1, 1, EntryKind.CONFIG, b"\xc1"),)),
    ],
    ids=["gap", "future term", "falling terms", "future prev", "bad membership"],
)
def test_appends_that_make_no_sense_are_refused(message: AppendEntries) -> None:
    cluster = Cluster(1, 2, 3)
    with pytest.raises(PeerError):
        cluster[2].step(message)
    assert cluster[2].log.last_index == 0


def test_an_acknowledgement_beyond_the_log_is_refused() -> None:
    cluster = elected(1, 2, 3)
    with pytest.raises(PeerError):
        cluster[1].step(AppendResponse(sender=2, to=1, term=1, index=99))


def test_commit_is_the_lesser_of_the_leaders_and_the_last_new_entry() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].step(append(2, term=1, new=entries(1, 1, 1)))
    cluster[2].step(append(2, term=1, after=(1, 1), commit=3))
    assert cluster[2].log.commit == 1
    cluster[2].step(append(2, term=1, after=(3, 1), commit=99))
    assert cluster[2].log.commit == 3


def test_a_heartbeat_that_commits_beyond_the_log_is_refused_not_clamped() -> None:
    """T14: the leader says that this node acknowledged what it does not have."""
    cluster = Cluster(1, 2, 3)
    cluster[2].step(append(2, term=1, new=entries(1)))
    with pytest.raises(PeerError, match="missing"):
        cluster[2].step(Heartbeat(sender=1, to=2, term=1, commit=2, round=0))
    assert cluster[2].log.commit == 0


def test_a_stored_commit_beyond_the_stored_log_stops_the_node() -> None:
    """T14 after a restart."""
    from chronik.raft import HardState

    cluster = Cluster(1, 2, 3)
    disk = cluster.nodes[2].disk
    disk.entries, disk.hard_state = list(entries(1, 1)), HardState(1, None, 3)
    with pytest.raises(InvariantViolated, match="beyond the log"):
        cluster.restart(2)


def test_a_stored_log_with_a_hole_stops_the_node() -> None:
    from chronik.raft import HardState

    for stored in ((*entries(1), *entries(1, start=3)), entries(1, start=2)):
        cluster = Cluster(1, 2, 3)
        disk = cluster.nodes[2].disk
        disk.entries, disk.hard_state = list(stored), HardState(1, None, 0)
        with pytest.raises(InvariantViolated):
            cluster.restart(2)


def test_the_stored_commit_index_never_runs_ahead_of_the_stored_log() -> None:
    cluster = elected(1, 2, 3)
    cluster.auto_sync = False
    for text in "abc":
        cluster.propose(1, text)
        while cluster.network:
            cluster.deliver()
            cluster.sync(2, 1)
            cluster.sync(3)
            disk = cluster.nodes[2].disk
            assert disk.hard_state is not None
            assert disk.hard_state.commit <= disk.entries[-1].index


def test_committing_alone_writes_nothing() -> None:
    cluster = Cluster(1, 2, 3)
    cluster[2].step(append(2, term=1, new=entries(1)))
    cluster.drive(2)
    cluster[2].step(append(2, term=1, after=(1, 1), commit=1))
    ready = cluster[2].ready()
    assert ready is not None
    assert (ready.number, ready.hard_state) == (0, None)
    assert [e.index for e in ready.committed] == [1]


def test_persisted_for_a_number_never_handed_out_stops_the_node() -> None:
    with pytest.raises(InvariantViolated):
        Cluster(1).nodes[1].core.persisted(5)


def test_a_second_leader_in_one_term_stops_the_node() -> None:
    cluster = elected(1, 2, 3)
    for node_id in (1, 2):
        with pytest.raises(InvariantViolated, match="both lead term 1"):
            cluster[node_id].step(Heartbeat(sender=3, to=node_id, term=1, commit=0, round=0))
