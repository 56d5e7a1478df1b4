"""Records in, offsets out: picks partitions, gathers batches, bounds memory.

There is no linger timer: an idle partition sends at once, a busy one batches by being busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chronik.client.cluster import Cluster
from chronik.client.metadata import PartitionInfo
from chronik.client.partitioner import partition_for_key
from chronik.client.sender import Enlisting, PartitionQueue, ProducerBatch, Sender
from chronik.model import NO_LEADER, ErrorCode, RequestError, TopicPartition
from chronik.records.batch import read_header
from chronik.records.compression import Compression
from chronik.records.reader import Record

__all__ = ["ALL", "Delivery", "Producer", "partition_for_key"]

ALL: Final = -1
"""acks: every in-sync replica has the record."""
_RECORD_OVERHEAD_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a record will be; `await` it for the offset (-1 when nobody tells: acks=0)."""

    tp: TopicPartition
    _batch: ProducerBatch
    _index: int

    def __await__(self) -> Generator[Any, None, int]:
        return self.offset().__await__()

    async def offset(self) -> int:
        self._batch.is_observed = True
        base_offset = await asyncio.shield(self._batch.done)
        return base_offset + self._index if base_offset >= 0 else base_offset


class Producer:
    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ALL,
        compression: int = Compression.NONE,
        idempotent: bool = False,
        create_topics: bool = True,
        batch_bytes_max: int = 512 * 1024,
        buffer_bytes_max: int = 32 * 1024 * 1024,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        transaction: Enlisting | None = None,
    ) -> None:
        if idempotent and acks != ALL:
            raise ValueError("an idempotent producer needs acks=all")
        self._cluster = cluster
        self._create_topics = create_topics
        self._batch_bytes_max = batch_bytes_max
        self._buffer_bytes_max = buffer_bytes_max
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._turns: dict[str, int] = {}
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._failure: BaseException | None = None
        self._sender = Sender(
            cluster,
            acks=acks,
            compression=compression,
            idempotent=idempotent,
            on_done=self._on_done,
            transaction=transaction,
        )

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self._sender.stop()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Hand over a record; waits only while the buffer is full. The result says where it went."""
        while self._buffered_bytes >= self._buffer_bytes_max:
            self._room.clear()
            await self._room.wait()
        partitions = await self._cluster.partitions(topic, create=self._create_topics)
        if partition is None:
            partition = self._pick(topic, key, partitions)
        elif partition not in partitions:
            raise RequestError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic!r} has no partition {partition}, only 0-{len(partitions) - 1}",
            )
        record = Record(
            key=key,
            value=value,
            headers=tuple(headers),
            timestamp_ms=self._now_ms() if timestamp_ms is None else timestamp_ms,
        )
        size_bytes = _size_bytes(record)
        queue = self._sender.queue(TopicPartition(topic, partition))
        batch = self._open_batch(queue, size_bytes)
        if batch is None:
            batch = self._new_batch()
            self._sender.enqueue(queue, batch)
        batch.records.append(record)
        batch.size_bytes += size_bytes
        self._buffered_bytes += size_bytes
        return Delivery(queue.tp, batch, len(batch.records) - 1)

    async def send_batch(self, tp: TopicPartition, encoded: bytes | bytearray) -> Delivery:
        """Hand over one record batch as it is (no producer id is put into it)."""
        while self._buffered_bytes >= self._buffer_bytes_max:
            self._room.clear()
            await self._room.wait()
        read_header(encoded)  # an early complaint about bytes that are no batch
        batch = self._new_batch()
        batch.encoded = encoded
        batch.size_bytes = len(encoded)
        self._buffered_bytes += batch.size_bytes
        self._sender.enqueue(self._sender.queue(tp), batch)
        return Delivery(tp, batch, 0)

    async def flush(self) -> None:
        """Wait until everything handed over is settled; raises the first failure that nobody awaited."""
        await self._sender.idle()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def settle(self) -> None:
        """Wait until no record is under way, like `flush`, but ignore failures."""
        await self._sender.idle()
        self._failure = None

    def _pick(self, topic: str, key: bytes | None, partitions: Mapping[int, PartitionInfo]) -> int:
        """Choose the partition: by key as every Kafka client does; without a key fill the open batch, then
        take the next partition."""
        count = len(partitions)
        if key is not None:
            return partition_for_key(key, count)
        turn = self._turns.get(topic, -1)
        if turn >= 0 and self._open_batch(self._sender.queue(TopicPartition(topic, turn % count)), 0):
            return turn % count
        for step in range(1, count + 1):
            candidate = partitions.get((turn + step) % count)
            if candidate is not None and candidate.leader_id != NO_LEADER:
                break
        else:
            step = 1
        self._turns[topic] = (turn + step) % count
        return self._turns[topic]

    def _open_batch(self, queue: PartitionQueue, size_bytes: int) -> ProducerBatch | None:
        """The queue's last batch if it can take `size_bytes` more."""
        if not queue.waiting:
            return None
        batch = queue.waiting[-1]
        if batch.encoded is not None or batch.size_bytes + size_bytes > self._batch_bytes_max:
            return None
        return batch

    def _new_batch(self) -> ProducerBatch:
        done: asyncio.Future[int] = self._loop.create_future()
        return ProducerBatch(done=done, deadline=self._loop.time() + self._cluster.options.deadline_ms / 1000)

    def _on_done(self, batch: ProducerBatch) -> None:
        failure = batch.done.exception()
        if failure is not None and not batch.is_observed:
            self._failure = self._failure or failure
        self._buffered_bytes -= batch.size_bytes
        if self._buffered_bytes < self._buffer_bytes_max:
            self._room.set()


def _size_bytes(record: Record) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(content or b"") + 10 for name, content in record.headers)
