"""A new controller knows how young the leases of its predecessors can be, whatever the order of messages."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from chronik.cluster.lease import Lease
from chronik.raft.messages import Heartbeat, HeartbeatResponse, VoteResponse

VOTERS = (1, 2, 3, 4, 5)
OBSERVER = 6
DELAYS = (0.001, 0.01, 0.3, 2.0)


class _Node:
    def __init__(self, node_id: int, ahead: float) -> None:
        self.node_id = node_id
        self.ahead = ahead
        """Its clock beside the real one."""
        self.lease = Lease(node_id, ahead)
        self.term = 0
        self.leads = False
        self.votes: set[int] = set()


class _Cluster:
    """Heartbeats, answers and votes that are late and overtake each other; elections at any moment."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.nodes = {number: _Node(number, rng.uniform(-900, 900)) for number in (*VOTERS, OBSERVER)}
        self.elections: dict[int, float] = {}
        """By term: what the elected says of leases before it, in real time."""
        self.grants: list[tuple[int, float]] = []
        """Term and start, in real time, of each lease that anybody was given."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def later(self, work: Callable[[], None]) -> None:
        delay = self.rng.choice(DELAYS) * self.rng.random()
        heapq.heappush(self._queue, (self.now + delay, next(self._numbers), work))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self._queue and self.rng.random() < 0.7:
                at, _, work = heapq.heappop(self._queue)
                self.now = max(self.now, at)
                work()
            elif self.rng.random() < 0.9:
                self.now += 0.05
                for node in self.nodes.values():
                    if node.leads:
                        self._beat(node)
            else:
                self._campaign(self.nodes[self.rng.choice(VOTERS)])

    def clock(self, node: _Node) -> float:
        return self.now + node.ahead

    def _beat(self, leader: _Node) -> None:
        leader.lease.lead(VOTERS, self.clock(leader))
        self.grants.append((leader.term, leader.lease.start - leader.ahead))
        for number, peer in self.nodes.items():
            if peer is not leader:
                bare = Heartbeat(sender=leader.node_id, to=number, term=leader.term, commit=0, round=0)
                beat = leader.lease.heartbeat(bare, voters=VOTERS, last_index=0, now=self.clock(leader))
                if beat.lease is not None:
                    self.grants.append((beat.term, beat.lease - peer.ahead))
                self.later(lambda peer=peer, beat=beat: self._on_beat(peer, beat))  # type: ignore[misc]

    def _see(self, node: _Node, term: int) -> bool:
        """Whether a message of this term counts."""
        if term > node.term:
            node.term, node.leads = term, False
        return term == node.term

    def _on_beat(self, node: _Node, beat: Heartbeat) -> None:
        if not self._see(node, beat.term):
            return
        node.lease.on_heartbeat(beat, applied=0, now=self.clock(node))
        bare = HeartbeatResponse(sender=node.node_id, to=beat.sender, term=beat.term, round=0)
        answer = node.lease.answer(bare, self.clock(node))
        leader = self.nodes[beat.sender]

        def arrive() -> None:
            if self._see(leader, answer.term) and leader.leads:
                leader.lease.on_answer(answer, self.clock(leader))

        self.later(arrive)

    def _campaign(self, candidate: _Node) -> None:
        candidate.term, candidate.leads = max(node.term for node in self.nodes.values()) + 1, False
        candidate.votes = {candidate.node_id}
        for number in VOTERS:
            if number != candidate.node_id:
                self.later(lambda number=number, term=candidate.term: self._vote(number, candidate, term))  # type: ignore[misc]

    def _vote(self, number: int, candidate: _Node, term: int) -> None:
        voter = self.nodes[number]
        if term <= voter.term:
            return
        self._see(voter, term)
        bare = VoteResponse(sender=number, to=candidate.node_id, term=term, granted=True)
        vote = voter.lease.vote(bare, self.clock(voter))

        def arrive() -> None:
            if candidate.term != term or candidate.leads:
                return
            candidate.lease.on_vote(vote, self.clock(candidate))
            candidate.votes.add(number)
            if len(candidate.votes) > len(VOTERS) // 2:
                candidate.leads = True
                candidate.lease.elected(term)
                latest = candidate.lease.former_start_max(term, otherwise=0.0)
                self.elections[term] = latest - candidate.ahead

        self.later(arrive)


@pytest.mark.parametrize("seed", range(60))
def test_no_lease_of_an_earlier_leader_is_younger_than_the_elected_says(seed: int) -> None:
    cluster = _Cluster(random.Random(seed))
    cluster.run(3_000)
    assert cluster.elections
    for term, latest in cluster.elections.items():
        assert max((start for at, start in cluster.grants if at < term), default=0.0) <= latest + 1e-6


def test_the_bound_is_no_later_than_what_the_voters_told() -> None:
    """So that a controller that was elected long after the last heartbeat need not wait once more."""
    elected, voter = Lease(1, 0.0), Lease(2, 0.0)
    for lease in (elected, voter):
        lease.answer(HeartbeatResponse(sender=0, to=9, term=1, round=0), 10.0)
    vote = voter.vote(VoteResponse(sender=2, to=1, term=2, granted=True), 11.2)
    elected.on_vote(vote, 11.25)
    elected.elected(2)
    assert elected.former_start_max(2, otherwise=11.3) == pytest.approx(10.05)
    assert elected.former_start_max(3, otherwise=11.3) == 11.3


def test_a_vote_that_tells_no_time_counts_as_confirming_until_it_came() -> None:
    """As one of a version before this."""
    elected = Lease(1, 0.0)
    elected.on_vote(VoteResponse(sender=2, to=1, term=2, granted=True), 11.0)
    elected.elected(2)
    assert elected.former_start_max(2, otherwise=0.0) == 11.0
