"""A lease is never younger than the question that it answers."""

from __future__ import annotations

from math import inf

import msgspec

from chronik.cluster.lease import Lease
from chronik.raft.messages import Heartbeat, HeartbeatResponse

VOTERS = (1, 2, 3)


def heartbeat(leader: Lease, to: int, now: float, *, term: int = 1, last_index: int = 0) -> Heartbeat:
    bare = Heartbeat(sender=1, to=to, term=term, commit=0, round=0)
    return leader.heartbeat(bare, voters=VOTERS, last_index=last_index, now=now)


def response(follower: Lease, sender: int, now: float, *, term: int = 1) -> HeartbeatResponse:
    return follower.answer(HeartbeatResponse(sender=sender, to=1, term=term, round=0), now)


class Pair:
    """Node 1 leads node 2, whose clock is far ahead. Node 3 is not heard of."""

    AHEAD = 1000.0

    def __init__(self) -> None:
        self.leader, self.follower = Lease(1, 0.0), Lease(2, self.AHEAD)

    def beat(self, sent: float, came: float, *, applied: int = 0, last_index: int = 0, term: int = 1) -> None:
        message = heartbeat(self.leader, 2, sent, last_index=last_index, term=term)
        self.follower.on_heartbeat(message, applied=applied, now=self.AHEAD + came)

    def answer(self, sent: float, came: float, *, term: int = 1) -> None:
        self.leader.on_answer(response(self.follower, 2, self.AHEAD + sent, term=term), came)


def test_nobody_holds_a_lease_before_the_leader_has_spoken_of_an_answer() -> None:
    pair = Pair()
    pair.beat(1.0, 1.1)
    assert pair.follower.start == pair.leader.start == -inf
    pair.answer(1.1, 1.2)
    pair.leader.lead(VOTERS, 1.2)
    assert pair.leader.start == 1.0, "when it asked"


def test_a_lease_starts_when_the_answer_was_sent_less_the_age_of_the_leaders_own() -> None:
    pair = Pair()
    pair.beat(1.0, 1.25)
    pair.answer(1.5, 1.75)
    pair.beat(5.0, 9.0)
    assert pair.follower.start == pair.AHEAD + 1.5 - (1.75 - 1.0)
    pair.beat(5.5, 9.25)
    pair.answer(9.5, 10.0)
    pair.beat(10.0, 10.5)
    assert pair.follower.start == pair.AHEAD + 9.5 - (10.0 - 5.5)


def test_what_others_answered_since_makes_the_lease_younger_but_not_than_the_followers_answer() -> None:
    pair = Pair()
    pair.beat(1.0, 1.1)
    pair.answer(1.1, 1.2)
    third = Lease(3, 0.0)
    third.on_heartbeat(heartbeat(pair.leader, 3, 4.0), applied=0, now=4.1)
    pair.leader.on_answer(response(third, 3, 4.1), 4.2)
    pair.beat(4.3, 4.4)
    assert pair.follower.start == pair.AHEAD + 1.1


def test_an_answer_of_another_term_confirms_nothing() -> None:
    pair = Pair()
    pair.beat(1.0, 1.1)
    pair.answer(1.1, 1.2, term=2)
    pair.leader.lead(VOTERS, 1.2)
    assert pair.leader.start == -inf


def test_a_lease_waits_until_what_the_leader_had_is_applied() -> None:
    pair = Pair()
    pair.beat(1.0, 1.0)
    pair.answer(1.0, 1.0)
    pair.beat(2.0, 2.0, applied=4, last_index=5)
    pair.answer(2.0, 2.0)
    assert pair.follower.start == -inf
    pair.beat(3.0, 3.0, applied=4, last_index=9)
    pair.follower.on_applied(4)
    assert pair.follower.start == -inf
    pair.follower.on_applied(5)
    assert pair.follower.start == pair.AHEAD + 1.0, "the later one waits for more, and did not replace it"
    pair.beat(3.5, 3.5, applied=5, last_index=9)
    pair.follower.on_applied(9)
    assert pair.follower.start == pair.AHEAD + 2.0


def test_a_lease_that_waits_for_what_a_later_leader_does_not_have_is_let_go() -> None:
    pair = Pair()
    pair.beat(1.0, 1.0)
    pair.answer(1.0, 1.0)
    pair.beat(2.0, 2.0, applied=4, last_index=500)
    pair.answer(2.0, 2.0)
    pair.beat(3.0, 3.0, applied=4, last_index=5, term=2)
    pair.follower.on_applied(5)
    assert pair.follower.start == pair.AHEAD + 2.0


def test_what_is_said_of_a_life_before_this_one_counts_for_nothing() -> None:
    pair = Pair()
    pair.beat(1.0, 1.0)
    pair.answer(1.0, 1.0)
    for born, now in ((pair.AHEAD + 1.5, pair.AHEAD + 2.0), (10.0, 20.0)):  # started again; so was its host
        again = Lease(2, born)
        again.on_heartbeat(heartbeat(pair.leader, 2, 2.0), applied=0, now=now)
        assert again.start == -inf


def test_a_node_that_says_nothing_of_clocks_gets_no_lease() -> None:
    """As one of a version before this."""
    bare = HeartbeatResponse(sender=2, to=1, term=1, round=0)
    leader = Lease(1, 0.0)
    leader.on_answer(msgspec.msgpack.decode(msgspec.msgpack.encode(bare), type=HeartbeatResponse), 1.0)
    assert heartbeat(leader, 2, 2.0).lease is None
