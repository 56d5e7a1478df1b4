"""What every role does unless it says otherwise, and the table from message to handler.

By the time a handler runs, `fence` has dealt with the term: the message belongs to the node's
current term, except pre-votes, whose term is a question and not a fact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from chronik.model import NodeId, invariant
from chronik.raft import voting
from chronik.raft.messages import (
    AppendEntries,
    AppendResponse,
    Fence,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from chronik.raft.ready import RoleName

if TYPE_CHECKING:
    from chronik.raft.core import RaftCore

__all__ = ["Role", "dispatch"]


class Role:
    name: ClassVar[RoleName]

    def __init__(self, core: RaftCore) -> None:
        self.core = core

    def enter(self) -> None:
        """Runs once, when the core has taken on this role."""

    def leave(self) -> None:
        """Runs once, before the core takes on another role."""

    def tick(self) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Runs before a Ready is put together: turn wishes into messages."""

    def persisted(self) -> None:
        """More of the log became durable."""

    # A candidate that hears from a leader of its own term has lost (§5.2), and listens.

    def on_append(self, message: AppendEntries) -> None:
        self._concede(message.sender)
        self.core.role.on_append(message)

    def on_heartbeat(self, message: Heartbeat) -> None:
        self._concede(message.sender)
        self.core.role.on_heartbeat(message)

    def on_snapshot(self, message: InstallSnapshot) -> None:
        self._concede(message.sender)
        self.core.role.on_snapshot(message)

    def _concede(self, leader_id: NodeId) -> None:
        core = self.core
        invariant(not core.is_leader, f"nodes {core.node_id} and {leader_id} both lead term {core.term}")
        core.become_follower(core.term, leader_id)

    # Answers to questions of a former role; nobody waits for them.

    def on_pre_vote_response(self, message: PreVoteResponse) -> None:
        pass

    def on_vote_response(self, message: VoteResponse) -> None:
        pass

    def on_append_response(self, message: AppendResponse) -> None:
        pass

    def on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        pass

    def on_snapshot_response(self, message: InstallSnapshotResponse) -> None:
        pass

    def on_timeout_now(self, message: TimeoutNow) -> None:
        pass


def dispatch(role: Role, message: Message) -> None:
    match message:
        case AppendEntries():
            role.on_append(message)
        case AppendResponse():
            role.on_append_response(message)
        case Heartbeat():
            role.on_heartbeat(message)
        case HeartbeatResponse():
            role.on_heartbeat_response(message)
        case VoteRequest():
            voting.answer_vote(role.core, message)
        case VoteResponse():
            role.on_vote_response(message)
        case PreVoteRequest():
            voting.answer_pre_vote(role.core, message)
        case PreVoteResponse():
            role.on_pre_vote_response(message)
        case InstallSnapshot():
            role.on_snapshot(message)
        case InstallSnapshotResponse():
            role.on_snapshot_response(message)
        case TimeoutNow():
            role.on_timeout_now(message)
        case Fence():
            pass  # its term was all it had to say
