"""Who votes: 1, 3 or 5 nodes, over racks, without needless changes, and never without a live majority."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.cluster.voters import quorum_changes, voters_of
from chronik.metadata.state import ClusterState
from chronik.metadata.values import Broker
from chronik.raft import ChangeKind, ConfigChange, Membership


def state_of(*brokers: Broker, removed: set[int] = frozenset()) -> ClusterState:  # type: ignore[assignment]
    state = ClusterState()
    state.brokers = {broker.broker_id: broker for broker in brokers}
    state.removed = set(removed)
    return state


def broker(
    node: int,
    rack: str | None = None,
    *,
    fenced: bool = False,
    draining: bool = False,
    votes: bool | None = None,
) -> Broker:
    return Broker(
        broker_id=node,
        incarnation=UUID(int=node),
        epoch=1,
        endpoints={},
        rack=rack,
        fenced=fenced,
        draining=draining,
        votes=votes,
    )


def settle(
    state: ClusterState, membership: Membership, *, wanted: int = 3, gone: set[int] | None = None
) -> Membership:
    """Where the controller's steps end, each taken as soon as it is possible."""
    for _ in range(100):
        changes = quorum_changes(state, membership, wanted=wanted, gone=gone or ())
        if not changes:
            return membership
        membership = membership.changed(changes[0])
    raise AssertionError("the quorum does not come to rest")


def test_the_founders_that_are_too_many_become_observers() -> None:
    state = state_of(*(broker(node) for node in range(1, 8)))
    founders = Membership(tuple(range(1, 8)))
    assert settle(state, founders) == Membership((1, 2, 3), (4, 5, 6, 7))
    assert settle(state, founders, wanted=5) == Membership((1, 2, 3, 4, 5), (6, 7))
    assert settle(state, founders, wanted=1) == Membership((1,), tuple(range(2, 8)))


def test_the_leader_keeps_its_vote_where_it_may() -> None:
    state = state_of(*(broker(node) for node in range(1, 6)))
    assert voters_of(state, Membership((1, 2, 3, 4, 5)), leader=5) == (1, 2, 5)
    assert voters_of(state, Membership((1, 2, 3), (4, 5)), leader=3) == (1, 2, 3)


def test_two_nodes_have_one_voter_and_three_have_three() -> None:
    two = state_of(broker(1), broker(2))
    assert settle(two, Membership((1, 2))) == Membership((1,), (2,))
    three = state_of(broker(1), broker(2), broker(3))
    assert settle(three, Membership((1,), (2,))) == Membership((1, 2, 3))


def test_a_voter_that_is_away_keeps_its_vote_until_it_is_gone_for_good() -> None:
    state = state_of(broker(1), broker(2), broker(3, fenced=True), broker(4))
    membership = Membership((1, 2, 3), (4,))
    assert quorum_changes(state, membership) == []
    assert quorum_changes(state, membership, gone={3}) == [ConfigChange(ChangeKind.PROMOTE, 4)]
    grown = membership.changed(ConfigChange(ChangeKind.PROMOTE, 4))
    assert quorum_changes(state, grown, gone={3}) == [ConfigChange(ChangeKind.DEMOTE, 3)]
    back = state_of(*(broker(node) for node in (1, 2, 3, 4)))
    assert quorum_changes(back, Membership((1, 2, 4), (3,))) == [], "it comes back as an observer"


def test_a_voter_without_replacement_stays() -> None:
    state = state_of(broker(1), broker(2), broker(3, fenced=True))
    assert quorum_changes(state, Membership((1, 2, 3)), gone={3}) == []


def test_founders_that_have_not_started_yet_do_not_cost_the_others_their_votes() -> None:
    """Were 4 and 5 demoted now, 1 and 2 would be the majority, and nobody has seen them."""
    state = state_of(broker(3), broker(4), broker(5))
    founders = Membership((1, 2, 3, 4, 5))
    demoted = [change for change in quorum_changes(state, founders) if change.kind is ChangeKind.DEMOTE]
    assert {change.node_id for change in demoted} <= {1, 2}
    assert settle(state, founders, gone={1, 2}) == Membership((3, 4, 5), (1, 2))


def test_what_operators_say_comes_first() -> None:
    state = state_of(broker(1, votes=False), broker(2), broker(3), broker(4), broker(5, votes=True))
    assert settle(state, Membership((1, 2, 3), (4, 5))) == Membership((2, 3, 5), (1, 4))
    few = state_of(broker(1, votes=False), broker(2), broker(3))
    assert settle(few, Membership((1, 2, 3))) == Membership((1, 2, 3)), "there is nobody else"


def test_a_node_that_drains_is_replaced_before_it_goes() -> None:
    state = state_of(broker(1), broker(2), broker(3, draining=True), broker(4))
    assert settle(state, Membership((1, 2, 3), (4,))) == Membership((1, 2, 4), (3,))
    removed = state_of(broker(1), broker(2), broker(4), removed={3})
    assert settle(removed, Membership((1, 2, 4), (3,))) == Membership((1, 2, 4))


def test_new_nodes_observe_first() -> None:
    state = state_of(broker(1), broker(2), broker(3), broker(4), broker(5))
    changes = quorum_changes(state, Membership((1, 2, 3), (4,)))
    assert changes == [ConfigChange(ChangeKind.ADD_LEARNER, 5)]


def test_voters_leave_a_machine_that_has_all_of_them_as_soon_as_others_come() -> None:
    """Three shards of one machine found a cluster; later two machines join."""
    shards = [broker(node, "first") for node in (1, 2, 3)]
    assert settle(state_of(*shards), Membership((1, 2, 3))) == Membership((1, 2, 3))
    grown = state_of(*shards, broker(4, "second"), broker(5, "second"), broker(6, "third"))
    settled = settle(grown, Membership((1, 2, 3)))
    assert settled.voters == (1, 4, 6)


brokers = st.builds(
    broker,
    st.just(0),
    st.sampled_from((None, "a", "b", "c", "d")),
    fenced=st.booleans(),
    draining=st.sampled_from((False, False, False, True)),
    votes=st.sampled_from((None, None, None, True, False)),
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[ClusterState, Membership, set[int]]:
    import msgspec

    found = draw(st.lists(brokers, min_size=1, max_size=9))
    ids = list(range(1, len(found) + 1))
    state = state_of(
        *(msgspec.structs.replace(one, broker_id=node) for node, one in zip(ids, found, strict=True))
    )
    known = draw(st.lists(st.sampled_from([*ids, 20, 21]), min_size=1, max_size=9, unique=True))
    voters = draw(st.integers(1, len(known)))
    gone = draw(st.sets(st.sampled_from([*ids, 20, 21])))
    membership = Membership(tuple(sorted(known[:voters])), tuple(sorted(known[voters:])))
    for node in draw(st.sets(st.sampled_from(ids), max_size=2)):
        state.brokers.pop(node)
        state.removed.add(node)
    return state, membership, {node for node in gone if not state.is_alive(node)}


@settings(deadline=None, max_examples=400)
@given(clusters(), st.sampled_from((1, 3, 5)), st.integers(1, 9))
def test_the_quorum_comes_to_rest_and_never_loses_its_majority(
    drawn: tuple[ClusterState, Membership, set[int]], wanted: int, leader: int
) -> None:
    state, membership, gone = drawn

    def alive(one: Membership) -> int:
        return sum(map(state.is_alive, one.voters))

    for _ in range(60):
        changes = quorum_changes(state, membership, wanted=wanted, gone=gone, leader=leader)
        if not changes:
            break
        after = membership.changed(changes[0])
        had_majority = alive(membership) > len(membership.voters) // 2
        if had_majority and changes[0].kind is not ChangeKind.REMOVE:
            assert alive(after) > len(after.voters) // 2, changes[0]
        assert after.voters
        membership = after
    else:
        raise AssertionError("the quorum does not come to rest")
    # Whoever leads next has nothing to change either.
    for other in membership.voters:
        assert quorum_changes(state, membership, wanted=wanted, gone=gone, leader=other) == []
    if all(map(state.is_alive, membership.voters)):
        assert len(membership.voters) in (1, 3, 5)
        assert len(membership.voters) <= max(wanted, 1)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=12), st.sampled_from((1, 3, 5)))
def test_voters_cover_as_many_racks_as_they_can(racks: list[str], wanted: int) -> None:
    state = state_of(*(broker(node, rack) for node, rack in enumerate(racks, 1)))
    settled = settle(state, Membership(tuple(range(1, min(3, len(racks)) + 1))), wanted=wanted)
    used = Counter(racks[node - 1] for node in settled.voters)
    assert len(used) == min(len(settled.voters), len(set(racks)))
    assert set(settled.members) == set(range(1, len(racks) + 1))
