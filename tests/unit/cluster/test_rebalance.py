"""Plans that move replicas: as many copies as before, even shares, no step too many."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.cluster import rebalance
from chronik.cluster.placement import Slot, place
from chronik.cluster.rebalance import (
    Move,
    Placed,
    drain,
    even_out,
    even_out_steps,
    plan_moves,
    plan_moves_steps,
    replica_moves,
)
from chronik.model import ErrorCode, RequestError, TopicPartition
from tests.unit.cluster.plain_rebalance import plain_even_out


def placed(*replicas: tuple[int, ...], topic: str = "orders") -> list[Placed]:
    return [Placed(TopicPartition(topic, number), nodes) for number, nodes in enumerate(replicas)]


def slots(*nodes: int, **racks: str) -> list[Slot]:
    return [Slot(node, racks.get(f"n{node}")) for node in nodes]


def after(before: list[Placed], moves: list[Move]) -> list[tuple[int, ...]]:
    targets = {move.tp: move.target for move in moves}
    return [targets.get(one.tp, one.replicas) for one in before]


def load(lists: list[tuple[int, ...]], nodes: list[int]) -> list[int]:
    counts = Counter(node for replicas in lists for node in replicas)
    return [counts[node] for node in nodes]


def leads(lists: list[tuple[int, ...]], nodes: list[int]) -> list[int]:
    counts = Counter(replicas[0] for replicas in lists)
    return [counts[node] for node in nodes]


def test_a_new_node_gets_its_share_and_no_more_moves_than_that() -> None:
    before = [
        Placed(TopicPartition("orders", number), replicas)
        for number, replicas in enumerate(place(slots(1, 2, 3), 12, 3))
    ]
    moves = even_out(before, slots(1, 2, 3, 4))
    lists = after(before, moves)
    assert load(lists, [1, 2, 3, 4]) == [9, 9, 9, 9]
    assert leads(lists, [1, 2, 3, 4]) == [3, 3, 3, 3]
    assert replica_moves(moves) == 9


def test_what_is_even_stays() -> None:
    before = [Placed(TopicPartition("o", n), r) for n, r in enumerate(place(slots(1, 2, 3), 30, 2))]
    assert even_out(before, slots(1, 2, 3)) == []


def test_leaders_are_evened_out_over_a_chain() -> None:
    """Node 1 leads two that 3 cannot take; 2 takes one and gives 3 one of its own."""
    before = placed((1, 2), (1, 2), (2, 3), (4, 3), (4,))
    moves = even_out(before, slots(1, 2, 3, 4))
    assert replica_moves(moves) == 0
    assert leads(after(before, moves), [1, 2, 3, 4]) == [1, 1, 1, 2]


def test_nodes_that_are_not_there_keep_what_they_have() -> None:
    before = placed((9, 1), (9, 1), (9, 1), (1, 9))
    lists = after(before, even_out(before, slots(1, 2)))
    assert all(9 in replicas for replicas in lists)
    assert load(lists, [1, 2]) == [2, 2]


def test_each_topic_gives_its_share() -> None:
    before = placed(*[(1,)] * 8, topic="a") + placed(*[(1,)] * 8, topic="b")
    lists = after(before, even_out(before, slots(1, 2)))
    assert Counter(r[0] for r in lists[:8]) == Counter(r[0] for r in lists[8:]) == {1: 4, 2: 4}


def test_draining_keeps_copies_and_racks() -> None:
    before = placed((1, 2, 3), (2, 3, 1), (3, 1, 2))
    racks = {"n1": "a", "n2": "b", "n3": "c", "n4": "a", "n5": "b"}
    moves = drain(before, slots(1, 2, 3, 4, 5, **racks), 1)
    assert [move.target for move in moves] == [(4, 2, 3), (2, 3, 4), (3, 4, 2)]


def test_a_node_that_nobody_can_stand_in_for_is_not_drained() -> None:
    before = placed((1, 2, 3), (1,), (2, 3))
    with pytest.raises(RequestError, match="orders-0 has 3 replicas") as refused:
        drain(before, slots(1, 2, 3), 1)
    assert refused.value.code == ErrorCode.invalid_replication_factor
    forced = drain(before, slots(1, 2, 3), 1, force=True)
    assert [move.target for move in forced] == [(2, 3), (3,)]
    assert drain(placed((1,)), slots(1), 1, force=True) == []


# --- properties ---


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Placed], list[int]]:
    nodes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    topics = draw(st.integers(1, 3))
    found: list[Placed] = []
    for topic in range(topics):
        factor = draw(st.integers(1, len(nodes)))
        lists = draw(st.lists(st.permutations(nodes), max_size=8))
        found += placed(*(tuple(order[:factor]) for order in lists), topic=f"t{topic}")
    return found, nodes


@settings(deadline=None)
@given(clusters(), st.lists(st.integers(10, 12), max_size=2, unique=True))
def test_shares_differ_by_one_at_most_and_no_move_is_too_many(
    cluster: tuple[list[Placed], list[int]], more: list[int]
) -> None:
    before, old = cluster
    nodes = sorted([*old, *more])
    moves = even_out(before, slots(*nodes))
    lists = after(before, moves)
    for one, replicas in zip(before, lists, strict=True):
        assert len(set(replicas)) == len(one.replicas)
        assert set(replicas) <= set(nodes)
    counts = load(lists, nodes)
    assert max(counts) - min(counts) <= 1
    start = sorted(load([one.replicas for one in before], nodes), reverse=True)
    share, rest = divmod(sum(start), len(nodes))
    assert replica_moves(moves) == sum(
        max(0, count - share - (place < rest)) for place, count in enumerate(start)
    )
    assert even_out([Placed(one.tp, r) for one, r in zip(before, lists, strict=True)], slots(*nodes)) == []


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(tuple), max_size=6))
def test_leaders_are_as_even_as_the_replicas_allow(lists: list[tuple[int, ...]]) -> None:
    """The deliberately dumb twin tries every choice of leaders."""
    nodes = [1, 2, 3, 4]
    before = placed(*lists)
    result = after(before, even_out(before, slots(*nodes)))
    best = min(sorted(Counter(choice).values(), reverse=True) for choice in itertools.product(*result))
    assert sorted((n for n in leads(result, nodes) if n), reverse=True) == best


@settings(deadline=None)
@given(clusters(), st.lists(st.sampled_from(["a", "b", "c"]), min_size=12, max_size=12), st.data())
def test_no_plan_puts_replicas_into_fewer_racks(
    cluster: tuple[list[Placed], list[int]], racks: list[str], data: st.DataObject
) -> None:
    before, nodes = cluster
    named = [Slot(node, racks[node]) for node in [*nodes, 10, 11]]
    gone = data.draw(st.sampled_from(nodes))
    for moves in (even_out(before, named), drain(before, named, gone)):
        for move in moves:
            spread = [len({racks[node] for node in replicas}) for replicas in (move.before, move.target)]
            assert len(set(move.target)) == len(move.before)
            if gone not in move.before or gone in move.target:
                assert spread[1] >= spread[0]
    assert not any(gone in move.target for move in drain(before, named, gone))


@settings(deadline=None)
@given(
    st.lists(st.sampled_from((None, "a", "b", "c", "d")), min_size=1, max_size=8),
    st.lists(st.integers(0, 2**32), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_no_two_replicas_share_a_rack_while_there_are_others(
    racks: list[str | None], draws: list[int], factor: int
) -> None:
    """Wherever they were before: machines may have joined, or been given racks, since."""
    nodes = list(range(len(racks)))
    slots_ = [Slot(node, racks[node]) for node in nodes]
    choices = list(itertools.permutations(nodes, min(factor, len(nodes))))
    before = placed(*(choices[draw % len(choices)] for draw in draws))
    lists = after(before, even_out(before, slots_))
    places = {node: racks[node] or f"alone-{node}" for node in nodes}
    for replicas in lists:
        assert len(set(replicas)) == min(factor, len(nodes))
        used = {places[node] for node in replicas}
        assert len(used) == min(len(replicas), len(set(places.values())))
    assert even_out(placed(*lists), slots_) == []


@settings(deadline=None, max_examples=300)
@given(
    clusters(),
    st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=12, max_size=12),
    st.lists(st.integers(1, 11), min_size=1, max_size=11, unique=True),
)
def test_the_plan_is_that_of_the_plain_form(
    cluster: tuple[list[Placed], list[int]], racks: list[str | None], there: list[int]
) -> None:
    """Nodes that are new, nodes that are gone, racks of any size."""
    before, _ = cluster
    named = [Slot(node, racks[node]) for node in there]
    assert even_out(before, named) == plain_even_out(before, named)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 60), st.integers(1, 4), st.data())
def test_larger_plans_are_those_of_the_plain_form(
    rack_count: int, per_rack: int, partitions: int, topics: int, data: st.DataObject
) -> None:
    old = [Slot(n, f"r{n % rack_count}") for n in range(rack_count * per_rack)]
    new = [Slot(100 + n, f"r{n % rack_count}") for n in range(data.draw(st.integers(0, 4)))]
    before = []
    for topic in range(topics):
        factor, start = data.draw(st.integers(1, min(3, len(old)))), data.draw(st.integers(0, 20))
        before += placed(*place(old, partitions, factor, start=start), topic=f"t{topic}")
    gone = data.draw(st.sampled_from([None, 0]))
    named = [slot for slot in [*old, *new] if slot.broker_id != gone]
    assert even_out(before, named) == plain_even_out(before, named)


def looks_at(partitions: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a plan for four more nodes looks at a partition, with a replica in each of three racks."""
    looks = 0
    rack_gain = rebalance._ReplicaLists._rack_gain

    def counted(plan: rebalance._ReplicaLists, *args: Any) -> int:
        nonlocal looks
        looks += 1
        return rack_gain(plan, *args)

    nodes = [Slot(n, f"r{n % 3}") for n in range(12)]
    before = placed(*place(nodes, partitions, 3))
    with monkeypatch.context() as patched:
        patched.setattr(rebalance._ReplicaLists, "_rack_gain", counted)
        moves = even_out(before, [*nodes, *(Slot(100 + n, f"r{n % 3}") for n in range(4))])
    assert moves
    return looks


def test_what_cannot_move_costs_no_look_at_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rack has a replica of everything, so a replica only moves within its rack. Searching the other
    racks' nodes partition by partition made the cost grow with the square of their number."""
    small, large = looks_at(120, monkeypatch), looks_at(960, monkeypatch)
    assert large <= 8 * small * 1.5


def test_a_plan_is_made_in_steps_whose_number_grows_with_the_partitions() -> None:
    nodes = [Slot(n) for n in range(6)]
    steps = [sum(1 for _ in even_out_steps(placed(*place(nodes, n, 2)), nodes)) for n in (80, 800)]
    assert steps == [20, 200]


def test_a_node_that_is_named_twice_is_drained_once() -> None:
    nodes = [Slot(n) for n in range(6)]
    before = dict(placed(*place(nodes, 80, 2)))
    steps = [
        sum(1 for _ in plan_moves_steps(before, nodes[2:], drained)) for drained in ((0, 1), (0, 1) * 50)
    ]
    assert steps[0] == steps[1]
    assert plan_moves(before, nodes[2:], (0, 1)) == plan_moves(before, nodes[2:], (0, 1, 1, 0))
