"""Running for election: first a poll that costs nothing, then the real vote.

A term is opened only after a majority said that it would vote for this node. So a node that
cannot win (cut off, behind, or removed) leaves everybody's term alone, however often it tries.
A real vote that ends undecided goes back to the poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.raft.messages import PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse
from chronik.raft.quorum import VoteResult, tally
from chronik.raft.ready import RoleName
from chronik.raft.role import Role

if TYPE_CHECKING:
    from chronik.raft.core import RaftCore

__all__ = ["Candidate", "PreCandidate"]


class _Campaign(Role):
    votes: dict[int, bool]

    def enter(self) -> None:
        self.votes = {}

    def tick(self) -> None:
        core = self.core
        core.election_elapsed += 1
        if core.election_elapsed >= core.election_timeout:
            core.become_pre_candidate()

    def _count(self, voter: int, granted: bool) -> VoteResult:
        self.votes.setdefault(voter, granted)
        result = tally(self.core.log.membership.voters, self.votes)
        if result is VoteResult.LOST:
            self.core.become_follower(self.core.term, None)
        return result


class PreCandidate(_Campaign):
    name = RoleName.PRE_CANDIDATE

    def enter(self) -> None:
        super().enter()
        core, log = self.core, self.core.log
        for peer in core.other_voters:
            core.send(
                PreVoteRequest(
                    sender=core.node_id,
                    to=peer,
                    term=core.term + 1,
                    last_index=log.last_index,
                    last_term=log.last_term,
                )
            )
        if self._count(core.node_id, True) is VoteResult.WON:
            core.become_candidate(transfer=False)

    def on_pre_vote_response(self, message: PreVoteResponse) -> None:
        if message.granted and message.term != self.core.term + 1:
            return
        if self._count(message.sender, message.granted) is VoteResult.WON:
            self.core.become_candidate(transfer=False)


class Candidate(_Campaign):
    name = RoleName.CANDIDATE

    def __init__(self, core: RaftCore, *, transfer: bool) -> None:
        super().__init__(core)
        self._transfer = transfer

    def enter(self) -> None:
        """Ask, and vote for oneself, once the new term and that vote are durable."""
        super().enter()
        core, log = self.core, self.core.log
        core.promise(VoteResponse(sender=core.node_id, to=core.node_id, term=core.term, granted=True))
        for peer in core.other_voters:
            core.promise(
                VoteRequest(
                    sender=core.node_id,
                    to=peer,
                    term=core.term,
                    last_index=log.last_index,
                    last_term=log.last_term,
                    transfer=self._transfer,
                )
            )

    def on_vote_response(self, message: VoteResponse) -> None:
        if self._count(message.sender, message.granted) is VoteResult.WON:
            self.core.become_leader()
