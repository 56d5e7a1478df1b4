"""From where a follower is fed: what it keeps must be what the leader has, or had."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chronik.links.frames import LogPosition, Start
from chronik.replication.truncation_point import where_to_start
from chronik.storage.epochs import EpochHistory

few = st.integers(0, 4)


def position(log: list[int], start: int) -> LogPosition:
    """Of a log that has these epochs at its offsets, and forgot those before `start`."""
    history = EpochHistory()
    for offset, epoch in enumerate(log):
        history.note(epoch, offset)
    history.truncate_start(start)
    return LogPosition(start, len(log), list(history.entries))


@given(
    common=st.lists(st.integers(0, 3), max_size=6).map(sorted),
    ours=st.lists(st.sampled_from((3, 4, 6, 8)), max_size=5).map(sorted),
    theirs=st.lists(st.sampled_from((5, 7)), max_size=5).map(sorted),
    trims=st.tuples(few, few),
)
def test_what_a_follower_keeps_is_what_the_leader_has_or_had(
    common: list[int], ours: list[int], theirs: list[int], trims: tuple[int, int]
) -> None:
    leader, follower = common + ours, common + theirs
    leader_start, follower_start = min(trims[0] * 2, len(leader)), min(trims[1] * 2, len(follower))
    found = where_to_start(position(leader, leader_start), position(follower, follower_start))
    if found.is_reset:
        assert found.offset == leader_start
        assert len(common) <= leader_start, "nothing that both have is sent again"
        return
    assert leader_start <= found.offset <= len(leader)
    assert follower_start <= found.offset or follower_start > len(leader)
    kept = range(follower_start, min(found.offset, len(follower)))
    assert [follower[offset] for offset in kept] == [leader[offset] for offset in kept]
    assert all(offset < len(common) for offset in kept)
    if follower_start <= len(leader):
        assert found.offset >= min(len(common), len(follower))


def test_a_former_leaders_batches_do_not_hide_before_the_leaders_start() -> None:
    """They would count as committed with what follows them, and be served if this follower came to lead."""
    leader = LogPosition(13, 32, [(1, 13)])
    assert where_to_start(leader, LogPosition(0, 15, [(0, 0)])) == Start(13, True)
    assert where_to_start(leader, LogPosition(0, 15, [(0, 0), (1, 9)])) == Start(15, False)
