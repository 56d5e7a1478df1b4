"""What this node knows of deaths beyond the metadata log: it notices them before the cluster has acted.

Clients ask who leads in the very moment in which a leader dies. An answer out of the metadata log would name
the dead node, and some clients (librdkafka) ask again only a second later. So answers about a leader whose
connections just broke wait until the cluster has decided, which takes a few tenths of a second.

A node that was fenced is named for some time after that. A client that learns in one answer of a new leader
and that the old one is no more, and drops the old one first (librdkafka does), loses the new leader with it.

A broken connection does not tell a dead node from one that is cut off and serves on. A host that answers that
nobody listens where the node did says that its process is no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from chronik.metadata import events as e
from chronik.metadata.state import ClusterState
from chronik.metadata.values import Broker
from chronik.model import NodeId

DOUBT_SECONDS_MAX: Final = 1.0
"""A leader is in doubt for so long after its connections broke. If it leads even then, it is alive."""
NAMED_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.05


class Presence:
    def __init__(
        self,
        *,
        gone_since: Callable[[NodeId], float | None],
        state: Callable[[], ClusterState],
        now: Callable[[], float],
    ) -> None:
        """`gone_since` tells when the last connection with a node broke, None while there is one."""
        self._gone_since = gone_since
        self._state = state
        self._now = now
        self._fenced_at: dict[NodeId, float] = {}
        self._registered_at: dict[NodeId, float] = {}
        """When this node learned of each one's present life."""
        self._refused_at: dict[NodeId, float] = {}
        """When the connection was asked for that each one's host refused last."""
        self._decided = asyncio.Event()

    def on_event(self, event: e.Event) -> None:
        match event:
            case e.BrokerFenced():
                self._fenced_at[event.broker_id] = self._now()
            case e.BrokerRegistered() | e.BrokerUnfenced() | e.BrokerUnregistered():
                self._fenced_at.pop(event.broker_id, None)
                if isinstance(event, e.BrokerRegistered):
                    self._registered_at[event.broker_id] = self._now()
            case e.Resync():
                self._registered_at = dict.fromkeys(self._state().brokers, self._now())
                return
            case _:
                return
        decided, self._decided = self._decided, asyncio.Event()
        decided.set()

    def refused(self, node_id: NodeId, asked_at: float) -> None:
        """A connection that was asked for then was refused by the node's host."""
        self._refused_at[node_id] = asked_at

    def is_dead(self, node_id: NodeId) -> bool:
        """Whether the process that registered last is known to be gone, and not only its connections."""
        asked_at, gone_since = self._refused_at.get(node_id), self._gone_since(node_id)
        return (
            asked_at is not None
            and gone_since is not None
            and asked_at >= max(gone_since, self._registered_at.get(node_id, 0.0))
        )

    def brokers(self) -> list[Broker]:
        """The brokers that clients are told of: those alive, and those that were until lately."""
        oldest = self._now() - NAMED_SECONDS
        return [
            broker
            for _, broker in sorted(self._state().brokers.items())
            if not broker.fenced or self._fenced_at.get(broker.broker_id, oldest) > oldest
        ]

    def doubted(self) -> frozenset[NodeId]:
        """Nodes that count as alive, but whose connections with this one just broke."""
        return frozenset(
            broker.broker_id
            for broker in self._state().brokers.values()
            if self._is_doubted(broker.broker_id)
        )

    def _is_doubted(self, node_id: NodeId) -> bool:
        since = self._gone_since(node_id)
        return (
            since is not None and self._now() - since < DOUBT_SECONDS_MAX and self._state().is_alive(node_id)
        )

    async def settled(self, node_ids: Iterable[NodeId]) -> None:
        """Until none of these nodes is in doubt: fenced, back, or in doubt for too long."""
        waited_for = tuple(node_ids)
        while any(self._is_doubted(node_id) for node_id in waited_for):
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._decided.wait()
            except TimeoutError:
                pass
