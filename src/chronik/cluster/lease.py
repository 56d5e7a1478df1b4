"""Since when this node knows that the cluster counts on it: the start of its lease.

A node serves what it leads for `LEASE_SECONDS` from there; the cluster puts others in its place only later
(`controller`). Clocks are compared with themselves alone, and every start is the time of a question, never
that of an answer: whatever waited in a buffer, travelled for long or met a node that was stopped is as old as
the question was.

- The leader's own lease starts when it sent the heartbeats that a majority has answered. Who comes after it
  was elected later: one of that majority voted for it after it had answered.
- A follower's lease starts when it sent the answer that the leader speaks of, less what the leader's own was
  older than that answer then.
- It holds once the follower has applied all that the leader's log had when it was granted. So who is about to
  be fenced gets none that it could hold without knowing of it.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

import msgspec

from chronik.model import NodeId
from chronik.raft.messages import Heartbeat, HeartbeatResponse
from chronik.raft.quorum import agreed_value


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
        """As the leader: each follower's last answer, when it was sent by its clock and came in by this."""
        self._answered: dict[NodeId, float] = {}
        """As the leader: when the heartbeat was sent that each follower answered last."""

    # --- as a follower -------------------------------------------------------------------------------

    def on_heartbeat(self, message: Heartbeat, *, applied: int, now: float) -> None:
        """Of the leader that this node follows, in its own term."""
        self._question = (message.term, message.sent)
        start = message.lease
        if start is None or not self._born <= start <= now:  # else it speaks of a life before this one
            return
        if applied >= message.lease_index:
            self.start = max(self.start, start)
        elif self._grant is None or self._grant.term != message.term:
            # Not replaced by those that follow: who is always a bit behind would never come to hold one.
            self._grant = _Grant(message.term, message.lease_index, start)

    def on_applied(self, index: int) -> None:
        if self._grant is not None and index >= self._grant.index:
            self.start = max(self.start, self._grant.start)
            self._grant = None

    def answer(self, message: HeartbeatResponse, now: float) -> HeartbeatResponse:
        """As it leaves now."""
        term, question = self._question or (-1, 0.0)
        return msgspec.structs.replace(message, sent=now, question=question if term == message.term else None)

    # --- as the leader -------------------------------------------------------------------------------

    def on_answer(self, message: HeartbeatResponse, now: float) -> None:
        """In this node's own term, which it leads."""
        self._answers[message.sender] = (message.sent, now)
        if message.question is not None:
            self._answered[message.sender] = message.question

    def lead(self, voters: Collection[NodeId], now: float) -> None:
        """This node leads and has applied all from before its term: hold what a majority has answered."""
        self.start = max(self.start, self._majority_answered(voters, now))

    def heartbeat(
        self, message: Heartbeat, *, voters: Collection[NodeId], last_index: int, now: float
    ) -> Heartbeat:
        """As it leaves now."""
        sent, came = self._answers.get(message.to, (-inf, now))
        start = sent - max(0.0, came - self._majority_answered(voters, now))
        return msgspec.structs.replace(
            message, sent=now, lease=start if start > -inf else None, lease_index=last_index
        )

    def _majority_answered(self, voters: Collection[NodeId], now: float) -> float:
        """When the newest heartbeats were sent that a majority has answered; this node always has."""
        return agreed_value(
            voters, lambda voter: now if voter == self._node_id else self._answered.get(voter, -inf)
        )
