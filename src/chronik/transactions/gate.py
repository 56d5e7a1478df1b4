"""Is a transactional write part of an open transaction (KIP-890)?

A leader asks the transaction's coordinator before it takes the first batch of a producer that has nothing
open in the partition. Without that, a write that comes late, after its transaction ended, would open one
that nobody ever ends. Clients with transactions of version 2 do not add partitions themselves: there, asking
means adding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from chronik.metadata.store import MetadataStore
from chronik.model import NO_LEADER, ErrorCode, NodeId, RequestError, TopicPartition
from chronik.transactions.coordinator import ProducerIdentity, TransactionCoordinator
from chronik.transactions.transaction import V2

RETRY_S: Final = 0.02
PATIENCE_S: Final = 3.0
"""The last transaction of the producer may still be ending: wait for it here, sooner than the client can."""

_LATER: Final = frozenset({ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress})


class TransactionPeers(Protocol):
    async def add_partitions(
        self,
        node_id: NodeId,
        transactional_id: str,
        producer: ProducerIdentity,
        tps: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> None:
        """Ask a coordinator on another broker; RequestError is its answer."""
        ...


class TransactionGate:
    def __init__(
        self,
        *,
        node_id: NodeId,
        metadata: MetadataStore,
        coordinator: TransactionCoordinator,
        peers: TransactionPeers,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._coordinator = coordinator
        self._peers = peers
        self._turns: dict[int, _Turn] = {}

    def is_busy(self, producer_id: int) -> bool:
        """Writes of this producer are waiting here: a later one must not overtake them."""
        return producer_id in self._turns

    def turn(self, producer_id: int) -> AbstractAsyncContextManager[None]:
        """Writes of one producer go through one after the other, in the order in which they asked."""
        turn = self._turns.get(producer_id)
        if turn is None:
            turn = self._turns[producer_id] = _Turn(self._turns, producer_id)
        return turn

    async def admit(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tps: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> None:
        """Returns when all of `tps` are in the producer's transaction; RequestError if they are not.

        `adds`: put them in, for clients that leave that to the broker.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        while True:
            try:
                await self._ask(transactional_id, producer, tps, adds=adds)
                return
            except RequestError as error:
                if error.code not in _LATER or loop.time() > until:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _ask(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tps: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> None:
        home = self._metadata.state.partition(self._coordinator.partition_for(transactional_id))
        if home is None or home.leader == NO_LEADER:
            raise RequestError(ErrorCode.coordinator_not_available)
        if home.leader != self._node_id:
            await self._peers.add_partitions(
                home.leader, transactional_id, producer, tps, verify_only=not adds
            )
        elif adds:
            await self._coordinator.add_partitions(transactional_id, producer, tps, version=V2)
        else:
            for tp in tps:
                await self._coordinator.verify_partition(transactional_id, producer, tp)


class _Turn(AbstractAsyncContextManager[None]):
    """A fair lock that is forgotten when nobody holds it or waits for it."""

    def __init__(self, turns: dict[int, _Turn], producer_id: int) -> None:
        self._turns = turns
        self._producer_id = producer_id
        self._lock = asyncio.Lock()
        self._users = 0

    async def __aenter__(self) -> None:
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._turns.pop(self._producer_id, None)
