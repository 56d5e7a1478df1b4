"""Transactions from outside: which are open, since when, where, and how to end one that hangs."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from chronik.client.apis import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)
from chronik.client.cluster import Cluster
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_at: datetime.datetime | None
    """None: no transaction is open."""
    partitions: tuple[TopicPartition, ...]
    coordinator_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1: it has no transaction open in the partition."""


class Transactions:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(
        self, states: Collection[str] = (), producer_ids: Collection[int] = ()
    ) -> list[TransactionListing]:
        """Every transactional id the cluster knows, or those in one of these states, of these producers."""

        async def ask(node_id: NodeId) -> list[TransactionListing]:
            fields = {
                "state_filters": [*states],
                "producer_id_filters": [*producer_ids],
                "duration_filter": -1,
            }
            response = await self._cluster.send(node_id, LIST_TRANSACTIONS, fields)
            _check(response.error_code, f"node {node_id}")
            return [
                TransactionListing(
                    transactional_id=found.transactional_id,
                    producer_id=found.producer_id,
                    state=found.transaction_state,
                    coordinator_id=node_id,
                )
                for found in response.transaction_states
            ]

        async def ask_all() -> list[TransactionListing]:
            answers = await asyncio.gather(*(ask(node_id) for node_id in await self._cluster.node_ids()))
            return [found for answer in answers for found in answer]

        return sorted(await self._cluster.retry().run(ask_all), key=lambda found: found.transactional_id)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """RequestError(transactional_id_not_found) for one that the cluster does not know."""

        async def attempt(node_id: NodeId) -> TransactionDescription:
            fields = {"transactional_ids": [transactional_id]}
            (found,) = (await self._cluster.send(node_id, DESCRIBE_TRANSACTIONS, fields)).transaction_states
            _check(found.error_code, f"transaction {transactional_id!r}")
            started_at = found.transaction_start_time
            return TransactionDescription(
                transactional_id=transactional_id,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                state=found.transaction_state,
                timeout_ms=found.transaction_timeout // datetime.timedelta(milliseconds=1),
                started_at=started_at if started_at is not None and started_at.timestamp() > 0 else None,
                partitions=tuple(
                    TopicPartition(topic.topic, partition)
                    for topic in found.topics
                    for partition in topic.partitions
                ),
                coordinator_id=node_id,
            )

        return await self._cluster.on_coordinator("transaction", transactional_id, attempt)

    async def abort(self, transactional_id: str) -> None:
        """Abort what is open under this id and fence its producer, as a new producer of that id would."""

        async def attempt(node_id: NodeId) -> None:
            fields = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
            response = await self._cluster.send(node_id, INIT_PRODUCER_ID, fields)
            _check(response.error_code, f"transaction {transactional_id!r}")

        await self._cluster.on_coordinator("transaction", transactional_id, attempt)

    async def producers(self, tp: TopicPartition) -> Sequence[ActiveProducer]:
        """The producers that a partition's leader remembers."""

        async def attempt() -> Sequence[ActiveProducer]:
            fields = {"topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}]}
            try:
                response = await self._cluster.send(
                    await self._cluster.leader(tp), DESCRIBE_PRODUCERS, fields
                )
                (partition,) = response.topics[0].partitions
                _check(partition.error_code, str(tp), partition.error_message)
            except (RequestError, Unavailable):
                self._cluster.forget_leaders([tp.topic])
                raise
            return [
                ActiveProducer(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp_ms=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    transaction_start_offset=producer.current_txn_start_offset,
                )
                for producer in partition.active_producers
            ]

        return await self._cluster.retry().run(attempt)

    async def abort_hanging(self, tp: TopicPartition, producer: ActiveProducer) -> None:
        """Write an abort marker past the coordinator, for a transaction that it no longer knows (KIP-664)."""
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "transaction_result": False,
            "coordinator_epoch": max(producer.coordinator_epoch, 0),
            "topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}],
        }

        async def attempt() -> None:
            try:
                response = await self._cluster.send(
                    await self._cluster.leader(tp), WRITE_TXN_MARKERS, {"markers": [marker]}
                )
                _check(response.markers[0].topics[0].partitions[0].error_code, str(tp))
            except (RequestError, Unavailable):
                self._cluster.forget_leaders([tp.topic])
                raise

        await self._cluster.retry().run(attempt)


def _check(code: ErrorCode, what: str, message: str | None = None) -> None:
    if code != ErrorCode.none:
        raise RequestError(code, f"{what}: {message or code.name.replace('_', ' ')}")
