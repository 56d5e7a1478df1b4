"""Writes encoded batches from inside a task, in a transaction that the driver ends.

A task's transaction stays open when the task is done: the driver commits those of all tasks together, or
aborts them. Beginning a transaction fences the producer that used its id before, so a task that is run again,
or a straggler of an earlier run, cannot add anything twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from chronik.client import Cluster
from chronik.client.apis import END_TXN, INIT_PRODUCER_ID, PRODUCE
from chronik.client.transactional import Transaction
from chronik.model import ErrorCode, NodeId, ProducerIdentity, RequestError, TopicPartition, Unavailable
from chronik.records.compression import Compression
from chronik.spark.encoding import Rows, seal
from chronik.spark.options import OptionError, WriteOptions

_SEQUENCE_MASK: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What the driver needs to end a transaction that a task began."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TaskProducer:
    """Everything one task writes."""

    def __init__(self, cluster: Cluster, options: WriteOptions, transactional_id: str | None) -> None:
        self._cluster = cluster
        self._options = options
        self._transaction = (
            Transaction(cluster, transactional_id, timeout_ms=options.transaction_timeout_ms)
            if transactional_id is not None
            else None
        )
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._partition_counts: dict[str, int] = {}
        self._compression = int(Compression.named(options.compression.replace("none", "uncompressed")))
        self._turn = 0
        self.records = 0

    async def write_all(self, batches: Iterable[pa.RecordBatch]) -> OpenTransaction | None:
        """Write the rows; returns the transaction they are in, if they are in one."""
        if self._transaction is not None:
            await self._transaction.begin()
        for batch in batches:
            if batch.num_rows:
                await self._write(Rows.of(batch, self._options.topic))
                self.records += batch.num_rows
        if self._transaction is None or self._identity is None:
            return None
        return OpenTransaction(self._transaction.transactional_id, *self._identity)

    async def _write(self, rows: Rows) -> None:
        for topic in rows.topics:
            if topic not in self._partition_counts:
                self._partition_counts[topic] = await self._count_partitions(topic)
        self._turn += 1
        async with asyncio.TaskGroup() as group:
            for tp, numbers in rows.by_partition(self._partition_counts, self._turn):
                await self._enlist(tp)
                encoded = [
                    self._seal(tp, count, body)
                    for count, body in rows.bodies(numbers, self._options.batch_bytes)
                ]
                group.create_task(self._deliver(tp, encoded))

    async def _count_partitions(self, topic: str) -> int:
        try:
            return len(await self._cluster.partitions(topic, create=True))
        except RequestError as error:
            raise OptionError(f"topic {topic!r} cannot be written: {error}") from error

    async def _enlist(self, tp: TopicPartition) -> None:
        if self._transaction is not None:
            self._identity = await self._transaction.enlist(tp)
        elif self._identity is None:
            self._identity = await _new_identity(self._cluster)

    def _seal(self, tp: TopicPartition, count: int, body: object) -> bytearray:
        assert self._identity is not None
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = (sequence + count) & _SEQUENCE_MASK
        return seal(
            body,
            count,
            timestamp_ms=time.time_ns() // 1_000_000,
            compression=self._compression,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            is_transactional=self._transaction is not None,
        )

    async def _deliver(self, tp: TopicPartition, encoded: Sequence[bytearray]) -> None:
        """One after the other: sequence numbers must arrive in order."""
        for batch in encoded:
            await self._cluster.retry().run(lambda batch=batch: self._send(tp, batch))  # type: ignore[misc]

    async def _send(self, tp: TopicPartition, batch: bytearray) -> None:
        transactional_id = self._transaction.transactional_id if self._transaction else None
        fields = {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout": self._cluster.options.request_timeout_ms,
            "topic_data": [{"name": tp.topic, "partition_data": [{"index": tp.partition, "records": batch}]}],
        }
        try:
            response = await self._cluster.send(await self._cluster.leader(tp), PRODUCE, fields)
        except (RequestError, Unavailable):
            self._cluster.forget_leaders([tp.topic])
            raise
        (result,) = response.responses[0].partition_responses
        if result.error_code not in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            self._cluster.forget_leaders([tp.topic])
            message = getattr(result, "error_message", None) or result.error_code.name.replace("_", " ")
            raise RequestError(result.error_code, f"{tp}: {message}")


async def _new_identity(cluster: Cluster) -> ProducerIdentity:
    response = await cluster.on_any(
        INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout": 60_000}
    )
    if response.error_code != ErrorCode.none:
        raise RequestError(response.error_code)
    return ProducerIdentity(response.producer_id, response.producer_epoch)


async def end_transaction(cluster: Cluster, which: OpenTransaction, *, commit: bool) -> None:
    """Commit or abort; ending one that already ended that way changes nothing."""
    fields = {
        "transactional_id": which.transactional_id,
        "producer_id": which.producer_id,
        "producer_epoch": which.producer_epoch,
        "committed": commit,
    }

    async def attempt(node_id: NodeId) -> None:
        response = await cluster.send(node_id, END_TXN, fields)
        if response.error_code != ErrorCode.none:
            code = response.error_code
            raise RequestError(code, f"transaction {which.transactional_id!r}: {code.name.replace('_', ' ')}")

    await cluster.on_coordinator("transaction", which.transactional_id, attempt)
