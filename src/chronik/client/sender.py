"""Carries batches to the leaders of their partitions, one per partition at a time.

One batch in flight per partition keeps order across retries; what arrives meanwhile waits in the queue and
gathers. Batches that become ready in the same turn of the loop and have one leader share one request.

Idempotence (KIP-98): a queue's batches carry a producer id and consecutive sequences, and a retry repeats
both. When a batch is given up its fate is unknown, so the queue goes on under a new producer id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from chronik.client.apis import INIT_PRODUCER_ID, PRODUCE, PRODUCE_TRANSACTIONAL
from chronik.client.cluster import Cluster
from chronik.client.retry import Unanswered
from chronik.model import ChronikError, ErrorCode, NodeId, ProducerIdentity, RequestError, TopicPartition
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.tasks import Tasks

if TYPE_CHECKING:
    from kio.schema.produce.v12.response import ProduceResponse

_REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
_SEQUENCE_MASK: Final = 0x7FFFFFFF


class Enlisting(Protocol):
    """What a sender must know of the transaction that its batches belong to."""

    transactional_id: str

    async def enlist(self, tp: TopicPartition) -> ProducerIdentity:
        """Make the partition a part of the open transaction; returns who writes to it."""

    def fail(self, error: Exception) -> None:
        """A batch was given up, so the transaction must not commit."""


@dataclass(slots=True, kw_only=True, eq=False)
class ProducerBatch:
    """Records that travel together. Grows until its queue starts to send it."""

    done: asyncio.Future[int]
    deadline: float
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0
    encoded: bytes | bytearray | None = None
    is_observed: bool = False
    """Whether somebody waits for this batch; then its failure need not be reported elsewhere."""


@dataclass(slots=True, eq=False)
class PartitionQueue:
    tp: TopicPartition
    waiting: deque[ProducerBatch] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    identity: ProducerIdentity | None = None
    next_sequence: int = 0


@dataclass(slots=True, eq=False)
class _QueuedBatch:
    tp: TopicPartition
    data: bytes | bytearray
    done: asyncio.Future[int]


class Sender:
    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int,
        compression: int,
        idempotent: bool,
        on_done: Callable[[ProducerBatch], None],
        transaction: Enlisting | None = None,
    ) -> None:
        self._cluster = cluster
        self._acks = acks
        self._compression = compression
        self._idempotent = idempotent
        self._on_done = on_done
        self._transaction = transaction
        self._loop = asyncio.get_running_loop()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._outbox: dict[NodeId, list[_QueuedBatch]] = {}
        self._tasks = Tasks("producer")

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(tp)
        return queue

    def enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.waiting.append(batch)
        if queue.task is None:
            queue.task = self._tasks.spawn(self._drain(queue), f"sending to {queue.tp}")

    async def idle(self) -> None:
        """Return once nothing is waiting or under way."""
        while tasks := [queue.task for queue in self._queues.values() if queue.task is not None]:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """Give up everything that is not delivered."""
        await self._tasks.close()

    async def _drain(self, queue: PartitionQueue) -> None:
        batch: ProducerBatch | None = None
        try:
            while queue.waiting:
                batch = queue.waiting.popleft()
                await self._settle(queue, batch)
        finally:
            queue.task = None
            if batch is not None and not batch.done.done():
                self._give_up([batch, *queue.waiting])
                queue.waiting.clear()

    async def _settle(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        retry = self._cluster.retry(batch.deadline)
        try:
            base_offset = await retry.run(lambda: self._attempt(queue, batch))
        except Exception as error:  # a bug of ours is reported to the sender of the batch, too
            queue.identity = None
            if self._transaction is not None:
                self._transaction.fail(error)
            batch.done.set_exception(error)
        else:
            batch.done.set_result(base_offset)
        self._on_done(batch)

    def _give_up(self, batches: list[ProducerBatch]) -> None:
        for batch in batches:
            batch.done.set_exception(Unanswered("the producer was closed"))
            self._on_done(batch)

    async def _attempt(self, queue: PartitionQueue, batch: ProducerBatch) -> int:
        if self._transaction is not None:
            self._identify(queue, await self._transaction.enlist(queue.tp))
        elif self._idempotent and queue.identity is None:
            self._identify(queue, await self._new_identity())
        if batch.encoded is None:
            batch.encoded = self._encode(queue, batch)
        leader_id = await self._cluster.leader(queue.tp)
        one = _QueuedBatch(queue.tp, batch.encoded, self._loop.create_future())
        outbox = self._outbox.setdefault(leader_id, [])
        if not outbox:
            self._loop.call_soon(self._dispatch, leader_id)
        outbox.append(one)
        return await one.done

    def _identify(self, queue: PartitionQueue, identity: ProducerIdentity) -> None:
        """Sequences start at 0 with every id and epoch."""
        if queue.identity != identity:
            queue.identity, queue.next_sequence = identity, 0

    def _encode(self, queue: PartitionQueue, batch: ProducerBatch) -> bytearray:
        identity = queue.identity or ProducerIdentity(-1, -1)
        encoded = build_batch(
            batch.records,
            compression=self._compression,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=queue.next_sequence if queue.identity else -1,
            is_transactional=self._transaction is not None,
        )
        queue.next_sequence = (queue.next_sequence + len(batch.records)) & _SEQUENCE_MASK
        return encoded

    async def _new_identity(self) -> ProducerIdentity:
        fields = {"transactional_id": None, "transaction_timeout": 60_000}
        response = await self._cluster.send_any(INIT_PRODUCER_ID, fields)
        if response.error_code != ErrorCode.none:
            raise RequestError(response.error_code)
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    def _dispatch(self, node_id: NodeId) -> None:
        queued = self._outbox.pop(node_id, [])
        while queued:
            size, count = 0, 0
            while count < len(queued) and (count == 0 or size < _REQUEST_BYTES_MAX):
                size += len(queued[count].data)
                count += 1
            self._tasks.spawn(self._send(node_id, queued[:count]), f"a request to node {node_id}")
            queued = queued[count:]

    async def _send(self, node_id: NodeId, queued: list[_QueuedBatch]) -> None:
        by_topic: dict[str, list[_QueuedBatch]] = {}
        for one in queued:
            by_topic.setdefault(one.tp.topic, []).append(one)
        transaction = self._transaction
        api = PRODUCE if transaction is None else PRODUCE_TRANSACTIONAL
        fields = {
            "transactional_id": None if transaction is None else transaction.transactional_id,
            "acks": self._acks,
            "timeout": self._cluster.options.request_timeout_ms,
            "topic_data": [
                {
                    "name": topic,
                    "partition_data": [{"index": one.tp.partition, "records": one.data} for one in group],
                }
                for topic, group in by_topic.items()
            ],
        }
        results: dict[TopicPartition, int | Exception] = {}
        try:
            if self._acks == 0:
                await (await self._cluster.connection(node_id)).post(PRODUCE, fields)
                results = {one.tp: -1 for one in queued}
            else:
                results = _results(await self._cluster.send(node_id, api, fields))
        except ChronikError as error:
            self._cluster.forget_leaders(by_topic)
            results = {one.tp: error for one in queued}
        finally:
            self._hand_out(queued, results)

    def _hand_out(self, queued: list[_QueuedBatch], results: dict[TopicPartition, int | Exception]) -> None:
        for one in queued:
            result = results.get(one.tp, Unanswered(f"no result came for {one.tp}"))
            if isinstance(result, RequestError) and result.code.retriable:
                self._cluster.forget_leaders([one.tp.topic])
            if one.done.done():
                continue
            if isinstance(result, Exception):
                one.done.set_exception(result)
            else:
                one.done.set_result(result)


def _results(response: ProduceResponse) -> dict[TopicPartition, int | Exception]:
    results: dict[TopicPartition, int | Exception] = {}
    for topic in response.responses:
        for partition in topic.partition_responses:
            tp = TopicPartition(topic.name, partition.index)
            code = partition.error_code
            if code == ErrorCode.none:
                results[tp] = partition.base_offset
            elif code == ErrorCode.duplicate_sequence_number:
                results[tp] = -1  # written before, by an attempt whose answer was lost
            else:
                message = getattr(partition, "error_message", None) or code.name.replace("_", " ")
                results[tp] = RequestError(code, f"{tp}: {message}")
    return results
