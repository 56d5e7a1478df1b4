"""The transaction coordinator: finds the transactional id, asks the machine, answers when it is durable.

A record is completed in the journal's callback, not in the request that caused it. So a client that
disconnects cannot leave a transaction between two states.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from chronik.client_state import Share
from chronik.coordinators.coordinator import ShardedCoordinator
from chronik.coordinators.journal import Journal
from chronik.coordinators.shards import Replicas
from chronik.log_lines import RepeatingLine
from chronik.metadata.broker_config import broker_value
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, ProducerIdentity, RequestError, TopicPartition
from chronik.transactions.markers import MarkerWriter
from chronik.transactions.producer_ids import ProducerIds
from chronik.transactions.shard import TxnShard
from chronik.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PARTITION_BYTES,
    PREPARED,
    TXN_BYTES,
    TransactionMetadata,
    TxnRecord,
    TxnState,
)

log = logging.getLogger(__name__)

TRANSACTIONS_TOPIC: Final = "__transaction_state"
END_WAIT_S: Final = 0.2
"""How long EndTxn waits for the markers. Correctness does not need the wait, but without it the client's next
request often finds the transaction still ending and must be retried."""
FENCE_WAIT_S: Final = 2.0
ID_CHARS_MAX: Final = 1_024
"""Longest new transactional id. Each is kept for days; applications make some of a few dozen characters."""
PARTITIONS_ALWAYS: Final = 8
"""Partitions that a transaction may have even when memory is full, so that known ids stay usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    topic_partitions: int
    timeout_ms_max: int
    expiration_ms: int
    expiry_interval_ms: int

    @staticmethod
    def resolve(layers: tuple[Mapping[str, str], ...], *, topic_partitions: int) -> TransactionConfig:
        """Read the values from this broker's configs, strongest layer first."""
        return TransactionConfig(
            topic_partitions=topic_partitions,
            timeout_ms_max=broker_value("transaction.max.timeout.ms", layers),
            expiration_ms=broker_value("transactional.id.expiration.ms", layers),
            expiry_interval_ms=broker_value(
                "transaction.remove.expired.transaction.cleanup.interval.ms", layers
            ),
        )


class TransactionCoordinator(ShardedCoordinator[TxnShard, TransactionConfig]):
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        replicas: Replicas,
        markers: MarkerWriter,
        producer_ids: ProducerIds,
        config: Callable[[], TransactionConfig],
        now_ms: Callable[[], int],
        share: Share,
    ) -> None:
        super().__init__(
            TRANSACTIONS_TOPIC, metadata=metadata, replicas=replicas, config=config, now_ms=now_ms
        )
        self.markers = markers
        self._producer_ids = producer_ids
        self._share = share
        self._no_room = RepeatingLine(
            log, logging.WARNING, "transactional id %s: no room for %d bytes: transactional ids hold %d of %d"
        )

    def _build(self, journal: Journal) -> TxnShard:
        return TxnShard(journal, self.markers, self._producer_ids, self._now_ms, self._share)

    async def _shard(self, transactional_id: str) -> TxnShard:
        if not transactional_id:
            raise RequestError(ErrorCode.invalid_request, "The transactional id is empty.")
        return await self._shard_of(transactional_id)

    def _check_new(self, transactional_id: str) -> None:
        if len(transactional_id) > ID_CHARS_MAX:
            raise RequestError(
                ErrorCode.invalid_request, f"A transactional id has at most {ID_CHARS_MAX} characters."
            )
        self._check_room(transactional_id, TXN_BYTES + len(transactional_id))

    def _check_room(self, transactional_id: str, size_bytes: int) -> None:
        """The error is one that clients do not retry: ids are kept for days."""
        share = self._share
        if not share.has_room(size_bytes):
            share.note_refusal()
            self._no_room(None, transactional_id[:80], size_bytes, share.held_bytes, share.bytes_max)
            raise RequestError(
                ErrorCode.policy_violation, "There is no room for more transactional ids on this node."
            )

    async def _find(self, transactional_id: str) -> tuple[TxnShard, TransactionMetadata]:
        shard = await self._shard(transactional_id)
        txn = shard.transactions.get(transactional_id)
        if txn is None:
            raise RequestError(ErrorCode.invalid_producer_id_mapping)
        return shard, txn

    # -- producers --------------------------------------------------------------------------------

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected_producer_id: int = NO_PRODUCER_ID,
        expected_epoch: int = NO_PRODUCER_EPOCH,
    ) -> ProducerIdentity:
        if transactional_id is None:
            return ProducerIdentity(await self._producer_ids.next(), 0)
        shard = await self._shard(transactional_id)
        if not 0 < timeout_ms <= self.config.timeout_ms_max:
            raise RequestError(ErrorCode.invalid_transaction_timeout)
        if transactional_id not in shard.transactions:
            self._check_new(transactional_id)
        new_producer_id = await self._producer_ids.next() if shard.needs_id(transactional_id) else None
        txn = shard.find_or_add(transactional_id, new_producer_id, timeout_ms)

        def begin() -> TxnRecord:
            return txn.init_producer(
                timeout_ms=timeout_ms,
                expected_producer_id=expected_producer_id,
                expected_epoch=expected_epoch,
                new_producer_id=new_producer_id,
                now_ms=self._now_ms(),
            )

        if txn.record.state is TxnState.ONGOING:
            # Abort what the last producer left open; usually that is done before the client would retry.
            await shard.write(txn, begin())
            await shard.wait_for_end(txn, FENCE_WAIT_S)
        record = begin()
        if record is not txn.record:
            record = await shard.write(txn, record)
            if record.state in PREPARED:
                raise RequestError(ErrorCode.concurrent_transactions)
        return ProducerIdentity(record.producer_id, record.producer_epoch)

    # -- transactions -----------------------------------------------------------------------------

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        version: int = 0,
    ) -> None:
        shard, txn = await self._find(transactional_id)
        record = txn.add_partitions(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            partitions=frozenset(partitions),
            now_ms=self._now_ms(),
            version=version,
        )
        if record is not None:
            if len(record.partitions) > PARTITIONS_ALWAYS:
                added = len(record.partitions) - len(txn.record.partitions)
                self._check_room(transactional_id, PARTITION_BYTES * added)
            await shard.write(txn, record)

    async def verify_partition(
        self, transactional_id: str, producer: ProducerIdentity, tp: TopicPartition
    ) -> None:
        _, txn = await self._find(transactional_id)
        txn.verify_partition(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, tp=tp)

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool, version: int = 0
    ) -> ProducerIdentity:
        """The identity to go on with; it changes with transactions of version 2."""
        shard, txn = await self._find(transactional_id)
        new_producer_id = await self._producer_ids.next() if shard.needs_id(transactional_id) else None
        prepared = txn.end(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            commit=commit,
            now_ms=self._now_ms(),
            version=version,
            new_producer_id=new_producer_id,
        )
        record = txn.record if prepared is None else await shard.write(txn, prepared)
        await shard.wait_for_end(txn, END_WAIT_S)
        return _identity_after(record)

    # -- looking ----------------------------------------------------------------------------------

    async def describe(self, transactional_id: str) -> TxnRecord:
        shard = await self._shard(transactional_id)
        txn = shard.transactions.get(transactional_id)
        if txn is None or txn.record.producer_epoch == NO_PRODUCER_EPOCH:
            raise RequestError(ErrorCode.transactional_id_not_found)
        return txn.record

    def list(self) -> list[tuple[str, TxnRecord]]:
        if self._shards.are_loading:
            raise RequestError(ErrorCode.coordinator_load_in_progress)
        return [
            (transactional_id, txn.record)
            for shard in self._shards
            for transactional_id, txn in shard.transactions.items()
            if txn.record.producer_epoch != NO_PRODUCER_EPOCH
        ]

    # -- forgetting -------------------------------------------------------------------------------

    def _expire(self, shard: TxnShard) -> None:
        shard.expire(self.config.expiration_ms)


def _identity_after(record: TxnRecord) -> ProducerIdentity:
    if record.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdentity(record.next_producer_id, 0)
    return ProducerIdentity(record.producer_id, record.producer_epoch)
