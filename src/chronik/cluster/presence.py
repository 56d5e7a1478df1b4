"""Which nodes seem to be dead before the metadata log says so.

Clients ask who leads in the very moment in which a leader dies. An answer out of the metadata log would name
the dead node, and some clients (librdkafka) ask again only a second later. So answers about a leader whose
connections just broke wait until the cluster has decided, which takes a few tenths of a second.

A fenced node stays in the broker list for `NAMED_SECONDS`. If one answer names a new leader and no longer
lists the old one, librdkafka removes the old broker first and loses the new leader with it.

A broken connection alone does not show that a node is dead: it may be cut off and still serve clients. If its
host refuses a new connection to its port, its process has ended.
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
"""For this long after its last connection broke, a node may be dead though it is not fenced yet. A node that
is still not fenced after that counts as alive."""
NAMED_SECONDS: Final = 5.0
"""How long answers still name a broker after it was fenced."""
LOOK_SECONDS: Final = 0.05


class Presence:
    def __init__(
        self,
        *,
        disconnected_since: Callable[[NodeId], float | None],
        state: Callable[[], ClusterState],
        now: Callable[[], float],
    ) -> None:
        """`disconnected_since` tells when the last connection with a node broke, None while there is one."""
        self._disconnected_since = disconnected_since
        self._state = state
        self._now = now
        self._fenced_at: dict[NodeId, float] = {}
        self._registered_at: dict[NodeId, float] = {}
        """When this node learned of each node's latest registration."""
        self._refused_at: dict[NodeId, float] = {}
        """When the last connection attempt began that the node's host refused."""
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
        """The node's host refused a connection attempt that began at `asked_at`: nobody listens there."""
        self._refused_at[node_id] = asked_at

    def is_dead(self, node_id: NodeId) -> bool:
        """Whether the process that registered last is known to have ended, not only its connections."""
        asked_at, disconnected_since = self._refused_at.get(node_id), self._disconnected_since(node_id)
        return (
            asked_at is not None
            and disconnected_since is not None
            and asked_at >= max(disconnected_since, self._registered_at.get(node_id, 0.0))
        )

    def brokers(self) -> list[Broker]:
        """The brokers that answers name: alive, or fenced less than `NAMED_SECONDS` ago."""
        oldest = self._now() - NAMED_SECONDS
        return [
            broker
            for _, broker in sorted(self._state().brokers.items())
            if not broker.fenced or self._fenced_at.get(broker.broker_id, oldest) > oldest
        ]

    def doubted(self) -> frozenset[NodeId]:
        """Nodes that are not fenced, but whose connections with this one broke lately."""
        return frozenset(
            broker.broker_id
            for broker in self._state().brokers.values()
            if self._is_doubted(broker.broker_id)
        )

    def _is_doubted(self, node_id: NodeId) -> bool:
        since = self._disconnected_since(node_id)
        return (
            since is not None and self._now() - since < DOUBT_SECONDS_MAX and self._state().is_alive(node_id)
        )

    async def settled(self, node_ids: Iterable[NodeId]) -> None:
        """Wait until each node is either fenced or connected again, at most `DOUBT_SECONDS_MAX`."""
        waited_for = tuple(node_ids)
        while any(self._is_doubted(node_id) for node_id in waited_for):
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._decided.wait()
            except TimeoutError:
                pass
