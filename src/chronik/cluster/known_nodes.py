"""Which nodes may send Raft messages to this one.

Whoever leads the quorum can replace all metadata, so being on a link is not enough: nodes that may join and
nodes that were removed have links as well. A message is taken from members of the quorum, registered brokers
and configured peers, unless they were removed.

A node that was down may not know who leads by now. It asks the nodes that it knows: one whose metadata is at
least as new can vouch for others. A vouch ends when this node's own metadata is as new as the voucher's was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

from chronik.log_lines import RepeatingLine
from chronik.metadata.state import ClusterState
from chronik.model import NodeId, PeerError, Unavailable
from chronik.raft.messages import Message, TimeoutNow
from chronik.tasks import Tasks

__all__ = ["KnownNodes", "Voucher"]

ASK_SECONDS: Final = 0.25
"""The least time between two rounds of questions, however many unknown nodes send messages."""

_ignored: Final = RepeatingLine(
    logging.getLogger(__name__),
    logging.WARNING,
    "ignoring Raft messages of node %d: neither this node nor any that it reaches knows it as a node of this "
    "cluster. If it is one, add it to `peers` of this node",
)


class Voucher(Protocol):
    """What a node says about the cluster (a `RaftStatus`)."""

    @property
    def last_applied_index(self) -> int: ...
    @property
    def cluster_nodes(self) -> Collection[NodeId]: ...


class QuorumView(Protocol):
    @property
    def ruling_members(self) -> Collection[NodeId]: ...
    @property
    def leader_id(self) -> NodeId | None: ...
    @property
    def term(self) -> int: ...
    @property
    def applied_index(self) -> int: ...


class KnownNodes:
    def __init__(
        self,
        *,
        configured: Collection[NodeId],
        quorum: QuorumView,
        state: Callable[[], ClusterState],
        connected: Callable[[], list[NodeId]],
        ask: Callable[[NodeId], Awaitable[Voucher]],
    ) -> None:
        """`ask` raises Unavailable."""
        self._configured = frozenset(configured)
        self._quorum = quorum
        self._state = state
        self._connected = connected
        self._ask = ask
        self._vouched: dict[NodeId, int] = {}
        """Nodes that others vouched for, with the voucher's applied index at that time."""
        self._may_ask_at = 0.0
        self._tasks = Tasks("asking who is in the cluster")

    async def stop(self) -> None:
        await self._tasks.close()

    def admits(self, message: Message) -> bool:
        """Whether a message may be taken. If not, others are asked about its sender, who will repeat it."""
        sender = message.sender
        if self._knows(sender) or self._is_vouched_for(sender) or self._names_successor(message):
            return True
        self._ask_about(sender)
        return False

    def _knows(self, node_id: NodeId) -> bool:
        if node_id in self._quorum.ruling_members:
            return True  # even if it was removed, until the quorum has let it go: it may lead
        state = self._state()
        return node_id not in state.removed and (node_id in state.brokers or node_id in self._configured)

    def _is_vouched_for(self, node_id: NodeId) -> bool:
        return self._vouched.get(node_id, -1) >= self._quorum.applied_index

    def _names_successor(self, message: Message) -> bool:
        """A leader that removed itself names its successor last of all; its removal may be committed here."""
        quorum = self._quorum
        is_leaders = (message.sender, message.term) == (quorum.leader_id, quorum.term)
        return is_leaders and isinstance(message, TimeoutNow)

    def _ask_about(self, node_id: NodeId) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._may_ask_at:
            self._may_ask_at = now + ASK_SECONDS
            self._tasks.spawn(self._ask_all(node_id), "asking who is in the cluster")

    async def _ask_all(self, node_id: NodeId) -> None:
        vouchers = [peer for peer in self._connected() if self._knows(peer)]
        await asyncio.gather(*map(self._ask_one, vouchers))
        if not self._knows(node_id) and node_id not in self._vouched:
            # One line for all of them: a stranger chooses the ids.
            _ignored(None, node_id)

    async def _ask_one(self, voucher: NodeId) -> None:
        try:
            answer = await self._ask(voucher)
        except (Unavailable, PeerError):
            return
        applied = self._quorum.applied_index
        told: Mapping[NodeId, int] = dict.fromkeys(answer.cluster_nodes, answer.last_applied_index)
        newest = {node: max(index, self._vouched.get(node, index)) for node, index in told.items()}
        self._vouched = {
            node: index for node, index in {**self._vouched, **newest}.items() if index >= applied
        }
