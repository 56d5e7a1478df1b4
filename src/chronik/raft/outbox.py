"""Messages on their way out, and the promises among them that must wait for the disk.

A vote, a request for votes and an acknowledgement promise something about durable state. Each is
held until the hand-out that carries this state, and with it everything before, is reported
durable; only then does it show up in a `Ready`.
"""

from __future__ import annotations

from collections import deque

from chronik.model import NodeId, invariant
from chronik.raft.messages import Message

__all__ = ["RaftOutbox"]


class RaftOutbox:
    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._sendable: list[Message] = []
        self._held: deque[tuple[int, Message]] = deque()
        self.to_self: list[Message] = []
        """A node's vote for itself is a promise too, and takes the same way."""
        self.handed_number = 0
        self.durable_number = 0

    @property
    def is_empty(self) -> bool:
        return not self._sendable

    def send(self, message: Message) -> None:
        if message.to == self._node_id:
            self.to_self.append(message)
        else:
            self._sendable.append(message)

    def hold(self, message: Message, *, is_dirty: bool) -> None:
        """Send when all state of this moment is durable; `is_dirty`: some is not even handed out."""
        number = self.handed_number + 1 if is_dirty else self.handed_number
        if number <= self.durable_number:
            self.send(message)
        else:
            self._held.append((number, message))

    def persisted(self, number: int, term: int) -> None:
        invariant(number <= self.handed_number, f"hand-out {number} was never handed out")
        self.durable_number = max(self.durable_number, number)
        while self._held and self._held[0][0] <= self.durable_number:
            message = self._held.popleft()[1]
            # A promise of a former term is of no use to anybody.
            if message.term >= term:
                self.send(message)

    def take(self) -> tuple[Message, ...]:
        messages = tuple(self._sendable)
        self._sendable.clear()
        return messages
