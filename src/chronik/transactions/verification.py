"""Is a transactional write part of an open transaction (KIP-890)?

A leader asks the transaction's coordinator before it takes the first batch of a producer that has nothing
open in the partition. Otherwise a write that arrives after its transaction ended would open a transaction
that never ends (a hanging transaction). Clients with transactions of version 2 do not add partitions
themselves: for them the leader's request adds the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from chronik.metadata.store import MetadataStore
from chronik.model import NO_LEADER, ErrorCode, NodeId, ProducerIdentity, RequestError, TopicPartition
from chronik.transactions.coordinator import TransactionCoordinator
from chronik.transactions.transaction import V2

RETRY_S: Final = 0.02
PATIENCE_S: Final = 3.0
"""How long a write waits while the producer's last transaction is still ending. Waiting here is quicker than
a retry by the client."""

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


class TransactionVerifier:
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

    async def verify(
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
