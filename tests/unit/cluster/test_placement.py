"""Placement: full lists of live brokers, balanced, over racks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.cluster import placement
from chronik.cluster.placement import Slot, place
from chronik.model import ErrorCode, RequestError
from tests.unit.cluster.plain_placement import plain_place


def test_ids_are_those_of_the_live_brokers() -> None:
    assert {id for replicas in place([Slot(7), Slot(42), Slot(1001)], 5, 3) for id in replicas} == {
        7,
        42,
        1001,
    }


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_an_impossible_replication_factor_is_refused(factor: int) -> None:
    with pytest.raises(RequestError) as refused:
        place([Slot(1), Slot(2), Slot(3)], 1, factor)
    assert refused.value.code == ErrorCode.invalid_replication_factor


def test_no_broker_at_all_is_refused() -> None:
    with pytest.raises(RequestError):
        place([], 1, 1)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 2000), min_size=1, max_size=9, unique=True),
    st.integers(1, 40),
    st.data(),
)
def test_every_partition_has_distinct_replicas_and_leaders_are_spread(
    ids: list[int], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(ids)))
    start = data.draw(st.integers(0, 1000))
    racks = data.draw(st.lists(st.sampled_from((None, "a", "b", "c")), min_size=len(ids), max_size=len(ids)))
    placed = place(
        [Slot(id, rack) for id, rack in zip(ids, racks, strict=True)], partitions, factor, start=start
    )
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(ids)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - (min(leaders.values()) if len(leaders) == len(ids) else 0) <= 1


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 50))
def test_replicas_cover_as_many_racks_as_they_can(rack_count: int, per_rack: int, start: int) -> None:
    slots = [Slot(rack * 10 + n, f"rack-{rack}") for rack in range(rack_count) for n in range(per_rack)]
    for factor in range(1, len(slots) + 1):
        for replicas in place(slots, 8, factor, start=start):
            used = Counter(id // 10 for id in replicas)
            assert len(used) == min(factor, rack_count)
            assert max(used.values()) - min(used.values()) <= 1


@settings(deadline=None)
@given(
    st.lists(st.sampled_from((None, "a", "b", "c", "d")), min_size=1, max_size=9),
    st.integers(1, 20),
    st.integers(0, 50),
    st.data(),
)
def test_no_two_replicas_share_a_rack_while_there_are_others(
    racks: list[str | None], partitions: int, start: int, data: st.DataObject
) -> None:
    """Racks of any size; a broker without one stands for itself."""
    factor = data.draw(st.integers(1, len(racks)))
    places = [rack or f"alone-{id}" for id, rack in enumerate(racks)]
    slots = [Slot(id, rack) for id, rack in enumerate(racks)]
    for replicas in place(slots, partitions, factor, start=start):
        used = Counter(places[id] for id in replicas)
        assert len(used) == min(factor, len(set(places)))
        # A rack gets another replica only when all others have as many, or no broker left.
        for rack, count in used.items():
            for other in set(places) - {rack}:
                assert used[other] >= count - 1 or used[other] == places.count(other)


def test_added_partitions_continue_where_the_first_ones_ended() -> None:
    slots = [Slot(1), Slot(2), Slot(3)]
    assert place(slots, 6, 2, start=4) == place(slots, 4, 2, start=4) + place(
        slots, 2, 2, start=4, first_partition=4
    )


def test_followers_are_spread_too() -> None:
    placed = place([Slot(id) for id in range(1, 5)], 12, 2)
    followers_of_one = Counter(replicas[1] for replicas in placed if replicas[0] == 1)
    assert followers_of_one == {2: 1, 3: 1, 4: 1}


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from((None, "a", "b", "c", "d")), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(0, 500),
    st.data(),
)
def test_replicas_are_those_of_the_plain_form(
    racks: list[str | None], partitions: int, start: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    slots = [Slot(id, rack) for id, rack in enumerate(racks)]
    assert place(slots, partitions, factor, start=start) == plain_place(
        slots, partitions, factor, start=start
    )


def test_a_partition_costs_the_same_whatever_the_number_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(list[str]):
        looks = 0

        def __getitem__(self, place: Any) -> Any:
            Counted.looks += 1
            return super().__getitem__(place)

    in_line = placement._alternate_racks

    def counted(slots: Sequence[Slot]) -> placement._Ring:
        ring = in_line(slots)
        return ring._replace(racks=Counted(ring.racks))

    monkeypatch.setattr(placement, "_alternate_racks", counted)
    looks = []
    for brokers in (10, 100):
        Counted.looks = 0
        place([Slot(id, f"rack-{id % 5}") for id in range(brokers)], 200, 3)
        looks.append(Counted.looks)
    assert looks[1] <= 1.2 * looks[0]
