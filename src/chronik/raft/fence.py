"""Terms as a fence (§5.1): what a message may do, by its term compared with the node's.

A newer term always makes a node a follower of it, with two exceptions that keep a cut-off node
from unseating a working leader when it returns: a node that hears from a leader ignores candidates
(check-quorum lease, thesis §4.2.3), and pre-votes change no term at all (thesis §9.6). An older
term changes nothing; a leader or candidate of one gets a Fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.raft.messages import (
    FROM_LEADER,
    Fence,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)

if TYPE_CHECKING:
    from chronik.raft.core import RaftCore

__all__ = ["admit"]


def admit(core: RaftCore, message: Message) -> bool:
    """Settle the term; says whether the message goes on to the role."""
    if message.term > core.term:
        return _admit_newer(core, message)
    if message.term < core.term:
        _answer_older(core, message)
        return False
    return True


def _admit_newer(core: RaftCore, message: Message) -> bool:
    match message:
        case PreVoteRequest():
            return not core.is_in_lease
        case VoteRequest() if core.is_in_lease and not message.transfer:
            return False
        case PreVoteResponse() if message.granted:
            return True
        case _:
            leader_id = message.sender if isinstance(message, FROM_LEADER) else None
            core.become_follower(message.term, leader_id)
            return True


def _answer_older(core: RaftCore, message: Message) -> None:
    sender, term = message.sender, core.term
    match message:
        case PreVoteRequest():
            core.send(PreVoteResponse(sender=core.node_id, to=sender, term=term, granted=False))
        case VoteRequest():
            core.send(VoteResponse(sender=core.node_id, to=sender, term=term, granted=False))
        case _ if isinstance(message, FROM_LEADER):
            core.send(Fence(sender=core.node_id, to=sender, term=term))
