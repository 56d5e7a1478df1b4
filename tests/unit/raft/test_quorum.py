"""Majorities and the log, compared with twins that are too simple to be wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chronik.raft import Entry, EntryKind, Membership, Snapshot
from chronik.raft.log import RaftLog
from chronik.raft.progress import Window
from chronik.raft.quorum import VoteResult, agreed_value, tally

voters = st.sets(st.integers(1, 9), max_size=7)


@given(st.dictionaries(st.integers(1, 9), st.integers(0, 12), max_size=9))
def test_agreed_value_is_the_highest_that_most_have_reached(values: dict[int, int]) -> None:
    def most_have(index: int) -> bool:
        return sum(value >= index for value in values.values()) * 2 > len(values)

    dumb = 0
    for index in range(13):
        if values and most_have(index):
            dumb = index
    assert agreed_value(values.keys(), values.__getitem__) == dumb


@given(voters, st.dictionaries(st.integers(1, 9), st.booleans()))
def test_an_election_is_decided_when_no_answer_can_change_it(nodes: set[int], votes: dict[int, bool]) -> None:
    yes = sum(votes.get(n) is True for n in nodes)
    silent = sum(n not in votes for n in nodes)
    wins_at_worst = yes * 2 > len(nodes)
    wins_at_best = (yes + silent) * 2 > len(nodes)
    dumb = VoteResult.WON if wins_at_worst else VoteResult.PENDING if wins_at_best else VoteResult.LOST
    assert tally(nodes, votes) is dumb


terms = st.lists(st.integers(1, 4), max_size=8).map(sorted)


def make_entries(log_terms: list[int]) -> list[Entry]:
    return [Entry(term, i + 1, EntryKind.COMMAND, bytes([term])) for i, term in enumerate(log_terms)]


@given(terms, terms)
def test_merging_gives_the_leaders_log_or_keeps_more_of_the_same(mine: list[int], theirs: list[int]) -> None:
    log = RaftLog(Snapshot(0, 0, Membership()), make_entries(mine), 0)
    log.merge(make_entries(theirs))
    conflict = any(a != b for a, b in zip(mine, theirs, strict=False))
    dumb = theirs if conflict or len(theirs) > len(mine) else mine
    assert [e.term for e in log.between(0, log.last_index)] == dumb


@given(terms, st.integers(0, 10), st.integers(0, 5))
def test_the_conflict_hint_is_the_last_entry_not_above(mine: list[int], index: int, term: int) -> None:
    log = RaftLog(Snapshot(0, 0, Membership()), make_entries(mine), 0)
    dumb = max(i for i, t in enumerate([0, *mine]) if i <= index and t <= term)
    assert log.last_at_most(index, term) == (dumb, [0, *mine][dumb])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), max_size=20), st.integers(0, 40))
def test_a_window_knows_what_is_under_way(sends: list[tuple[int, int]], acknowledged: int) -> None:
    window = Window(max_count=10, max_bytes=200)
    sent: list[tuple[int, int]] = []
    index = 0
    for step, size in sends:
        if not window.is_full:
            index += step
            window.add(index, size)
            sent.append((index, size))
    window.free_to(acknowledged)
    left = [(i, size) for i, size in sent if i > acknowledged]
    assert (len(window), window.bytes) == (len(left), sum(size for _, size in left))
    assert window.is_full == (len(left) >= 10 or window.bytes >= 200)
