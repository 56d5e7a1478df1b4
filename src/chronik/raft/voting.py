"""Answering candidates (§5.2, §5.4.1, thesis §9.6). The same in every role.

Votes are given to anybody who asks, member or not: a node's own membership may be the older one
(thesis §4.1). The candidate counts only the voters it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.raft.messages import PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse

if TYPE_CHECKING:
    from chronik.raft.core import RaftCore

__all__ = ["answer_pre_vote", "answer_vote"]


def answer_vote(core: RaftCore, request: VoteRequest) -> None:
    granted = _is_free(core, request) and core.log.is_up_to_date(request.last_index, request.last_term)
    response = VoteResponse(sender=core.node_id, to=request.sender, term=core.term, granted=granted)
    if granted:
        core.vote = request.sender
        core.reset_election_timer()
        core.promise(response)
    else:
        core.send(response)


def answer_pre_vote(core: RaftCore, request: PreVoteRequest) -> None:
    """Promises nothing and changes nothing."""
    granted = (request.term > core.term or _is_free(core, request)) and core.log.is_up_to_date(
        request.last_index, request.last_term
    )
    term = request.term if granted else core.term
    core.send(PreVoteResponse(sender=core.node_id, to=request.sender, term=term, granted=granted))


def _is_free(core: RaftCore, request: VoteRequest | PreVoteRequest) -> bool:
    """One vote per term, and none against a leader this term is known to have."""
    return core.vote == request.sender or (core.vote is None and core.leader_id is None)
