"""Knows who the peers are and where, and keeps a link of each purpose to each of them.

Peers come from the configuration and, as nodes join and leave, from the brokers that registered.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from chronik.links.connections import Dialer
from chronik.links.handshake import LinkIdentity
from chronik.links.link import LinkHandler
from chronik.metadata import events as e
from chronik.metadata.state import ClusterState
from chronik.model import NodeId
from chronik.tasks import Tasks

DATA: Final = "data"


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a node listens for other nodes."""

    wal: tuple[str, int]
    raft: tuple[str, int]

    def of(self, purpose: str) -> tuple[str, int]:
        return self.raft if purpose == "raft" else self.wal


class PeerLinks:
    def __init__(
        self,
        *,
        identity: LinkIdentity,
        configured: Mapping[NodeId, PeerAddress],
        handlers: Mapping[str, LinkHandler],
        state: Callable[[], ClusterState],
        quorum: Callable[[], Collection[NodeId]],
        on_refused: Callable[[NodeId, float], None],
        rng: random.Random,
    ) -> None:
        """`configured` may list this node itself; it is left out (S01). `quorum` has voters and learners."""
        self._identity = identity
        self._configured = {peer: at for peer, at in configured.items() if peer != identity.node_id}
        self._handlers = dict(handlers)
        self._state = state
        self._quorum = quorum
        self._on_refused = on_refused
        self._rng = rng
        self._dialers: dict[NodeId, list[Dialer]] = {}
        self._addresses: dict[NodeId, PeerAddress] = {}
        self._tasks = Tasks("links to peers")

    def start(self) -> None:
        if self._configured:
            places = ", ".join(f"{at.wal[0]}:{at.wal[1]}" for _, at in sorted(self._configured.items()))
            for stream in ("data", "metadata"):
                logging.getLogger(f"{__name__}.{stream}_stream").info(
                    "Auto-discovered %d followers from cluster config (excluding self node %d): %s",
                    len(self._configured),
                    self._identity.node_id,
                    places,
                )
        self._refresh()

    def on_event(self, event: e.Event) -> None:
        match event:
            case e.PeerDisconnected():
                self._hurry(event.node_id)
            case (
                e.BrokerRegistered()
                | e.BrokerUnregistered()
                | e.NodeAdmitted()
                | e.QuorumChanged()
                | e.Resync()
            ):
                self._refresh()
            case _:
                pass

    def unconnected(self) -> list[NodeId]:
        """Peers to which a link of some purpose is not open."""
        return sorted(
            peer
            for peer, dialers in self._dialers.items()
            if not all(dialer.is_connected for dialer in dialers)
        )

    def _refresh(self) -> None:
        """Dial exactly the peers that there are now, where they are now."""
        wanted = dict(self._configured)
        for broker in self._state().brokers.values():
            wal, raft = broker.endpoints.get("wal"), broker.endpoints.get("raft")
            if wal is not None and raft is not None and broker.broker_id != self._identity.node_id:
                wanted[broker.broker_id] = PeerAddress((wal.host, wal.port), (raft.host, raft.port))
        for peer in self._quorum():
            if peer not in wanted and peer in self._addresses:
                wanted[peer] = self._addresses[peer]
        # A node that was removed is talked to until the quorum has let it go: it may lead the quorum.
        for gone in self._state().removed.difference(self._quorum()):
            wanted.pop(gone, None)
        for peer in [peer for peer, at in self._addresses.items() if wanted.get(peer) != at]:
            self._hang_up(peer)
        for peer, at in wanted.items():
            if peer not in self._addresses:
                self._dial(peer, at)

    def _dial(self, peer: NodeId, at: PeerAddress) -> None:
        self._addresses[peer] = at
        self._dialers[peer] = [
            Dialer(
                identity=self._identity,
                peer_id=peer,
                address=at.of(purpose),
                purpose=purpose,
                handler=handler,
                jitter=self._rng.random,
                on_refused=self._on_refused,
            )
            for purpose, handler in self._handlers.items()
        ]
        for dialer in self._dialers[peer]:
            dialer.start()

    def _hurry(self, peer: NodeId) -> None:
        """All connections with a peer broke: dial soon, since a refusal tells of its death (`presence`)."""
        for dialer in self._dialers.get(peer, ()):
            dialer.hurry()

    def _hang_up(self, peer: NodeId) -> None:
        self._addresses.pop(peer, None)
        for dialer in self._dialers.pop(peer, []):
            self._tasks.spawn(dialer.stop(), f"hanging up on node {peer}")

    async def stop(self) -> None:
        dialers = [dialer for group in self._dialers.values() for dialer in group]
        await asyncio.gather(*(dialer.stop() for dialer in dialers), self._tasks.finished())
