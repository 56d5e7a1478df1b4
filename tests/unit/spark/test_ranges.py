"""Ranges of offsets: cut and capped."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from chronik.model import TopicPartition
from chronik.spark.exactly_once import PART_CHARACTERS_MAX, SinkDecision, decode, encode, part_count
from chronik.spark.producing import OpenTransaction
from chronik.spark.ranges import OffsetRange, cap, split

tps = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3))
ranges = st.dictionaries(tps, st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), max_size=6).map(
    lambda found: [OffsetRange(tp, start, start + size) for tp, (start, size) in found.items()]
)


@given(ranges, st.integers(1, 40), st.integers(1, 10**5))
def test_pieces_cover_each_range_once_in_order(
    given_ranges: list[OffsetRange], tasks: int, smallest: int
) -> None:
    pieces = split(given_ranges, tasks, smallest)
    assert all(piece.size for piece in pieces)
    for each in given_ranges:
        mine = [piece for piece in pieces if piece.tp == each.tp]
        borders = [(piece.start, piece.end) for piece in mine]
        if not each.size:
            assert not mine
            continue
        assert borders[0][0] == each.start
        assert borders[-1][1] == each.end
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(borders))
        assert len(mine) == 1 or all(piece.size >= smallest for piece in mine)


def test_one_large_range_is_cut_for_every_core() -> None:
    pieces = split([OffsetRange(TopicPartition("a", 0), 0, 1_000_000)], tasks=8)
    assert len(pieces) == 8
    assert {piece.size for piece in pieces} == {125_000}


@given(st.dictionaries(tps, st.tuples(st.integers(0, 1000), st.integers(0, 1000))), st.integers(1, 3000))
def test_a_cap_is_kept_and_used_up(sizes: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    start = {tp: first for tp, (first, _) in sizes.items()}
    end = {tp: first + size for tp, (first, size) in sizes.items()}
    capped = cap(start, end, limit)
    assert all(start[tp] <= capped[tp] <= end[tp] for tp in end)
    taken = sum(capped[tp] - start[tp] for tp in end)
    assert taken == min(limit, sum(size for _, size in sizes.values()))
    assert cap(start, end, None) == end


@given(st.integers(0, 2**40), st.integers(0, 300))
def test_a_decision_of_any_size_survives(batch_id: int, count: int) -> None:
    decision = SinkDecision(
        batch_id, tuple(OpenTransaction(f"chronik-{n}", n * 1000, n) for n in range(count))
    )
    parts = encode(decision)
    assert all(len(part) <= PART_CHARACTERS_MAX + 10 for part in parts)
    assert part_count(parts[0]) == len(parts)
    assert decode(batch_id, parts) == decision
