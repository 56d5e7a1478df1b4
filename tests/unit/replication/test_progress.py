"""When a follower acknowledged an offset: an interval that is always right, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chronik.replication.progress import ACK_SLOT_SECONDS, ACKS_KEPT_MAX, FollowerProgress


def acknowledge(progress: FollowerProgress, *acks: tuple[int, float]) -> None:
    for end_offset, now in acks:
        progress.acknowledged(end_offset, end_offset, now)


def test_an_offset_is_acknowledged_by_the_first_report_behind_it() -> None:
    progress = FollowerProgress(0, now=0.0)
    assert progress.when_acknowledged(0) is None
    acknowledge(progress, (5, 1.0), (9, 2.0), (9, 3.0))
    assert progress.when_acknowledged(4) == (None, 1.0)
    assert progress.when_acknowledged(5) == (1.0, 2.0)
    assert progress.when_acknowledged(8) == (1.0, 2.0), "a report that says nothing new does not count"
    assert progress.when_acknowledged(9) is None


def test_reports_of_one_slot_are_one_entry() -> None:
    progress = FollowerProgress(0, now=0.0)
    slot = ACK_SLOT_SECONDS
    acknowledge(progress, (1, 10.0), (2, 10.0 + slot / 4), (3, 10.0 + slot / 2), (4, 20.0))
    assert progress.when_acknowledged(0) == (None, 10.0 + slot / 2)
    assert progress.when_acknowledged(3) == (10.0 + slot / 2, 20.0)


def test_what_a_follower_lost_is_not_acknowledged() -> None:
    progress = FollowerProgress(0, now=0.0)
    acknowledge(progress, (10, 1.0), (20, 2.0), (30, 3.0))
    progress.starts_at(15)
    assert progress.when_acknowledged(15) is None
    assert progress.when_acknowledged(12) == (1.0, 2.0)
    acknowledge(progress, (25, 4.0))
    assert progress.when_acknowledged(16) == (2.0, 4.0)


def test_a_follower_of_an_idle_partition_keeps_no_times() -> None:
    """A node may lead 100,000 partitions, and most of them are idle."""
    first, second = FollowerProgress(0, now=0.0), FollowerProgress(0, now=0.0)
    for progress in (first, second):
        acknowledge(progress, (7, 1.0), (7, 2.0))
        progress.starts_at(3)
    assert first._ack_ends is second._ack_ends
    assert first._ack_times is second._ack_times
    acknowledge(first, (8, 3.0), (9, 4.0))
    assert first.when_acknowledged(8) == (3.0, 4.0)
    assert not second._ack_ends
    assert not second._ack_times


def test_few_times_are_kept_of_a_busy_partition() -> None:
    progress = FollowerProgress(0, now=0.0)
    for number in range(1, 10_000):
        acknowledge(progress, (number, float(number)))
    kept = (progress._ack_ends, progress._ack_times)
    assert sum(len(one) * one.itemsize for one in kept) <= 16 * 16


steps = st.lists(
    st.tuples(st.sampled_from([0.001, 0.05, 0.2, 5.0]), st.integers(0, 20), st.integers(0, 30)), max_size=400
)


@given(steps)
def test_the_interval_holds_the_moment_and_memory_is_bounded(moves: list[tuple[float, int, int]]) -> None:
    progress, now, end = FollowerProgress(0, now=0.0), 0.0, 0
    moments: dict[int, float] = {}
    for seconds, records, lost in moves:
        now += seconds
        if lost == 30 and end:
            end = max(end - 7, 0)
            progress.starts_at(end)
            moments = {offset: at for offset, at in moments.items() if offset < end}
        moments |= dict.fromkeys(range(end, end + records), now)
        end += records
        progress.acknowledged(end, end, now)
    for offset, moment in moments.items():
        found = progress.when_acknowledged(offset)
        assert found is not None
        assert found.after is None or found.after <= moment
        assert moment <= found.by
    assert progress.when_acknowledged(end) is None
    assert len(progress._ack_ends) == len(progress._ack_times) <= ACKS_KEPT_MAX
