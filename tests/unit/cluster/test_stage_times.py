"""Who is counted, and until when, in the figures of metadata writes."""

from __future__ import annotations

from chronik.cluster.stage_times import StageTimes
from chronik.metrics import WriteStages
from chronik.raft import Entry, EntryKind


def entry(index: int) -> Entry:
    return Entry(1, index, EntryKind.COMMAND, b"")


def times(*followers: int) -> tuple[StageTimes, WriteStages]:
    """Of a leader that has heard of these followers."""
    stages = WriteStages()
    made = StageTimes(stages)
    for follower in followers:
        made.applied_by(follower, 0)
    return made, stages


def commit(made: StageTimes, *indexes: int) -> None:
    for index in indexes:
        made.proposed(index)
    made.committed([entry(index) for index in indexes])


def test_each_entry_is_counted_once_for_each_follower() -> None:
    made, stages = times(2, 3)
    commit(made, 5, 6)
    assert stages.committed.count == 2
    made.applied_by(2, 4)
    assert stages.followers.count == 0
    made.applied_by(2, 5)
    made.applied_by(2, 5)
    assert stages.followers.count == 1
    made.applied_by(3, 6)
    assert stages.followers.count == 3
    made.applied_by(2, 9)
    assert stages.followers.count == 4


def test_followers_may_be_faster_than_the_leaders_own_disk() -> None:
    """Two of three make a majority: they may have committed and applied what the leader has yet to write."""
    made, stages = times(2, 3)
    made.proposed(5)
    made.applied_by(2, 5)
    made.applied_by(3, 5)
    assert (stages.committed.count, stages.followers.count) == (0, 2)
    made.committed([entry(5)])
    made.applied_by(2, 6)
    assert (stages.committed.count, stages.followers.count) == (1, 2)


def test_entries_of_others_are_not_counted() -> None:
    made, stages = times(2)
    made.written([entry(1)])
    made.sent([entry(1)])
    made.committed([entry(1)])
    made.applied_by(2, 1)
    assert [found.count for found in stages.by_name().values()] == [0] * 5


def test_what_was_written_while_a_follower_was_away_is_not_counted() -> None:
    made, stages = times(2)
    commit(made, 5)
    made.lost(2)
    commit(made, 6)
    made.applied_by(2, 6)
    assert stages.followers.count == 0
    commit(made, 7)
    made.applied_by(2, 7)
    assert stages.followers.count == 1


def test_a_deposed_leader_forgets() -> None:
    """Another leader's entry may come to stand where this one's was."""
    made, stages = times(2)
    made.proposed(5)
    commit(made, 4)
    made.forget()
    made.committed([entry(5)])
    made.applied_by(2, 5)
    made.applied_by(2, 5)
    assert (stages.committed.count, stages.followers.count) == (1, 0)
