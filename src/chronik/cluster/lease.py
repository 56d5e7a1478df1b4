"""The start of this node's lease.

A node may lead partitions for `LEASE_SECONDS` from that start. The controller fences it only after that. No
two clocks are compared: a time is only used by the node whose clock it was read from. A lease starts when a
message was sent, not when its answer arrived: the answer may have waited in a buffer, or for a process that
was stopped.

- The Raft leader's lease starts when it sent the newest heartbeats that a majority has answered. No other
  leader can have been elected by then: one of this majority would have voted for it, and would not answer.
- A follower's lease starts when the follower sent the answer that the leader refers to, minus the age that
  the leader's own lease had when that answer arrived.
- A follower holds a lease only once it has applied everything that was in the leader's log when the lease was
  granted. If its fencing is in that log, it has applied the fencing too.
- A new leader knows when the last lease of its predecessors can have started at the latest. Each was
  confirmed by a majority, and one of that majority is among those that voted for it. A vote says how long ago
  the voter last confirmed a lease: when it answered a heartbeat or, if it led itself, when it led.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

import msgspec

from chronik.model import NodeId
from chronik.raft.messages import Heartbeat, HeartbeatResponse, VoteResponse
from chronik.raft.quorum import agreed_value

LEASE_SECONDS: Final = 1.5
"""Lease duration. The controller never fences a broker before its lease has expired."""


class _Grant(msgspec.Struct, frozen=True):
    """A lease that waits until this node has applied `index`."""

    term: int
    index: int
    start: float


class Lease:
    def __init__(self, node_id: NodeId, now: float) -> None:
        self._node_id = node_id
        self._born = now
        self.start = -inf
        self._question: tuple[int, float] | None = None
        """Term and time, by its leader's clock, of the last heartbeat."""
        self._grant: _Grant | None = None
        self._answers: dict[NodeId, tuple[float, float]] = {}
        """Used by the leader: when each follower sent its last answer, by the follower's clock, and when that
        arrived."""
        self._answered: dict[NodeId, float] = {}
        """Used by the leader: when it sent the heartbeat that each follower answered last."""
        self._confirmed_at = now
        """When this node last answered a heartbeat or led. At first now: the process before a restart may
        have led until then."""
        self._votes: tuple[int, float] = (-1, -inf)
        """A term, and when the voters for this node in it last confirmed a lease, at the latest."""
        self._former: tuple[int, float] = (-1, inf)
        """The term in which this node was elected last, and what `former_start_max` says in it."""

    # --- as a follower -------------------------------------------------------------------------------

    def on_heartbeat(self, message: Heartbeat, *, applied: int, now: float) -> None:
        """The leader that this node follows sent a heartbeat in the current term."""
        self._question = (message.term, message.sent)
        start = message.lease
        if start is None or not self._born <= start <= now:  # granted to an earlier start of this node
            return
        if applied >= message.lease_index:
            self.start = max(self.start, start)
        elif self._grant is None or self._grant.term != message.term:
            # Keep the first grant: if each heartbeat replaced it, a node that always lags would hold none.
            self._grant = _Grant(message.term, message.lease_index, start)

    def on_applied(self, index: int) -> None:
        if self._grant is not None and index >= self._grant.index:
            self.start = max(self.start, self._grant.start)
            self._grant = None

    def answer(self, message: HeartbeatResponse, now: float) -> HeartbeatResponse:
        """The answer as it is sent now."""
        self._confirmed_at = now
        term, question = self._question or (-1, 0.0)
        return msgspec.structs.replace(message, sent=now, question=question if term == message.term else None)

    # --- elections -----------------------------------------------------------------------------------

    def vote(self, message: VoteResponse, now: float) -> VoteResponse:
        """The vote as it is sent now. In its term the sender answers no older leader any more."""
        return msgspec.structs.replace(message, heard_ago=max(0.0, now - self._confirmed_at))

    def on_vote(self, message: VoteResponse, now: float) -> None:
        """Note that somebody voted for this node."""
        term, latest = self._votes
        confirmed = now - message.heard_ago
        self._votes = message.term, max(confirmed, latest) if term == message.term else confirmed

    def elected(self, term: int) -> None:
        """This node leads from now on."""
        voted_in, latest = self._votes
        self._former = term, max(self._confirmed_at, latest) if voted_in == term else self._confirmed_at

    def former_start_max(self, term: int, otherwise: float) -> float:
        """As the leader of `term`: no lease of an earlier leader started after this, by this node's clock.

        `otherwise` is the answer before `elected` told of this term.
        """
        elected_in, latest = self._former
        return latest if elected_in == term else otherwise

    # --- as the leader -------------------------------------------------------------------------------

    def on_answer(self, message: HeartbeatResponse, now: float) -> None:
        """A follower answered a heartbeat of this node's term."""
        self._answers[message.sender] = (message.sent, now)
        if message.question is not None:
            self._answered[message.sender] = message.question

    def lead(self, voters: Collection[NodeId], now: float) -> None:
        """This node leads and has applied everything from before its term: renew its own lease."""
        self._confirmed_at = now
        self.start = max(self.start, self._majority_answered(voters, now))

    def heartbeat(
        self, message: Heartbeat, *, voters: Collection[NodeId], last_index: int, now: float
    ) -> Heartbeat:
        """The heartbeat as it is sent now."""
        self._confirmed_at = now
        sent, came = self._answers.get(message.to, (-inf, now))
        start = sent - max(0.0, came - self._majority_answered(voters, now))
        return msgspec.structs.replace(
            message, sent=now, lease=start if start > -inf else None, lease_index=last_index
        )

    def _majority_answered(self, voters: Collection[NodeId], now: float) -> float:
        """When this node sent the newest heartbeats that a majority, this node included, has answered."""
        return agreed_value(
            voters, lambda voter: now if voter == self._node_id else self._answered.get(voter, -inf)
        )
