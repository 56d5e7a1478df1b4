"""Load-driven moves: never worse, always at an end, never into fewer racks, and none for noise."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from chronik.cluster.load_plan import PlanLimits, Traffic, node_loads, plan_moves
from chronik.cluster.placement import Slot
from chronik.model import TopicPartition

LEADERS = PlanLimits(difference_min=1_000, leaders_max=16, replicas_max=0)
REPLICAS = PlanLimits(difference_min=1_000, leaders_max=16, replicas_max=2)


def traffic(number: int, replicas: tuple[int, ...], taken: int, given: int = 0, **more: object) -> Traffic:
    fields = {"isr": replicas, "may_move": True, **more}
    return Traffic(TopicPartition("t", number), replicas, taken=taken, given=given, **fields)  # type: ignore[arg-type]


def slots(count: int, racks: int = 0) -> list[Slot]:
    return [Slot(node, f"rack-{node % racks}" if racks else None) for node in range(1, count + 1)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Traffic], dict[int, int], list[Slot]]:
    count = draw(st.integers(2, 7))
    nodes = slots(count, draw(st.integers(0, 3)))
    factor = draw(st.integers(1, min(3, count)))
    out = []
    for number in range(draw(st.integers(1, 20))):
        replicas = tuple(draw(st.permutations(range(1, count + 1)))[:factor])
        isr = tuple(one for one in replicas if one == replicas[0] or draw(st.booleans()))
        rates = draw(st.integers(0, 50_000)), draw(st.integers(0, 200_000))
        out.append(traffic(number, replicas, *rates, isr=isr, may_move=draw(st.booleans())))
    others = {node.broker_id: draw(st.integers(0, 50_000)) for node in nodes}
    return out, others, nodes


def applied(found: list[Traffic], targets: Mapping[TopicPartition, tuple[int, ...]]) -> list[Traffic]:
    return [
        one._replace(replicas=targets.get(one.tp, one.replicas), isr=targets.get(one.tp, one.isr))
        for one in found
    ]


def rack_count(one: tuple[int, ...], nodes: list[Slot]) -> int:
    racks = {slot.broker_id: slot.rack or slot.broker_id for slot in nodes}
    return len({racks[node] for node in one})


@given(clusters())
def test_a_plan_makes_nothing_worse_and_plans_come_to_an_end(
    cluster: tuple[list[Traffic], dict[int, int], list[Slot]],
) -> None:
    found, others, nodes = cluster
    before = node_loads(found, others, nodes)
    for _ in range(200):
        moves = plan_moves(found, others, nodes, REPLICAS)
        if not moves:
            break
        targets = {move.tp: move.target for move in moves}
        assert len(targets) == len(moves)
        for one in found:
            target = targets.get(one.tp)
            if target is not None:
                assert one.may_move
                assert len(set(target)) == len(one.replicas)
                assert rack_count(target, nodes) >= rack_count(one.replicas, nodes)
                copies = set(target) != set(one.replicas)
                assert copies or target[0] in one.isr
                assert next(move.copies_data for move in moves if move.tp == one.tp) == copies
        found = applied(found, targets)
        after = node_loads(found, others, nodes)
        assert max(after.values()) <= max(before.values())
        assert sum(load**2 for load in after.values()) < sum(load**2 for load in before.values())
        assert sum(move.copies_data for move in moves) <= REPLICAS.replicas_max
        before = after
    else:
        raise AssertionError("plans do not come to an end")


@given(clusters())
def test_without_leave_to_copy_only_leaders_in_sync_move(
    cluster: tuple[list[Traffic], dict[int, int], list[Slot]],
) -> None:
    found, others, nodes = cluster
    by_tp = {one.tp: one for one in found}
    for move in plan_moves(found, others, nodes, LEADERS):
        assert sorted(move.target) == sorted(by_tp[move.tp].replicas)
        assert move.target[0] in by_tp[move.tp].isr


def test_busy_leaders_of_one_node_are_spread_over_those_that_follow() -> None:
    found = [traffic(number, (1, 2, 3), 100_000) for number in range(6)]
    moves = plan_moves(found, {}, slots(3), LEADERS)
    after = node_loads(applied(found, {move.tp: move.target for move in moves}), {}, slots(3))
    assert set(after.values()) == {1_000_000}
    assert len(moves) == 4


def test_one_busy_partition_stays_where_it_is() -> None:
    """Its load is the same wherever it is."""
    assert plan_moves([traffic(0, (1, 2, 3), 9_000_000)], {}, slots(3), LEADERS) == []


def test_loads_that_differ_little_are_left_alone() -> None:
    by_share = [traffic(0, (1, 2), 0, 120_000), traffic(1, (1, 2), 0, 10_000), traffic(2, (2, 1), 0, 100_000)]
    assert plan_moves(by_share, {}, slots(2), LEADERS) == []
    by_bytes = [traffic(number, (1, 2), 0, 300) for number in range(3)]
    assert plan_moves(by_bytes, {}, slots(2), LEADERS) == []


def test_what_cannot_be_named_counts_too() -> None:
    """A node's many quiet partitions together may be a reason to take a busy one off it."""
    found = [traffic(0, (1, 2), 0, 100_000), traffic(1, (2, 1), 0, 100_000)]
    assert [move.target for move in plan_moves(found, {1: 300_000}, slots(2), LEADERS)] == [(2, 1)]


def test_between_shards_of_a_machine_replicas_move_where_that_is_allowed() -> None:
    """Without copies on other nodes there is nobody else to lead."""
    found = [traffic(number, (1,), 100_000) for number in range(4)]
    nodes = [Slot(1, "machine"), Slot(2, "machine")]
    assert plan_moves(found, {}, nodes, LEADERS) == []
    assert [move.target for move in plan_moves(found, {}, nodes, REPLICAS)] == [(2,), (2,)]


def test_a_replica_does_not_go_where_the_partition_has_one_of_the_same_machine() -> None:
    found = [traffic(number, (1, 3), 100_000) for number in range(4)]
    nodes = [Slot(1, "a"), Slot(2, "a"), Slot(3, "b"), Slot(4, "b")]
    for move in plan_moves(found, {}, nodes, REPLICAS):
        assert rack_count(move.target, nodes) == 2
