"""A partition of an internal topic as a coordinator's log: appended to and replayed in one leader epoch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from chronik.log_lines import RepeatingLine
from chronik.model import ErrorCode, ProducerIdentity, RequestError, StorageError
from chronik.records.batch import BatchHeader, Buffer, headers
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.partition import ACKS_ALL, Partition

log = logging.getLogger(__name__)
_failed: Final = RepeatingLine(log, logging.ERROR, "%s cannot be appended to: %s")

READ_BYTES: Final = 1024 * 1024

_NOT_COORDINATOR: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
    }
)
_NOT_AVAILABLE: Final = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.request_timed_out,
    }
)


def coordinator_error(code: ErrorCode) -> ErrorCode:
    """The error for a client of a coordinator whose append failed."""
    if code in _NOT_COORDINATOR:
        return ErrorCode.not_coordinator
    return ErrorCode.coordinator_not_available if code in _NOT_AVAILABLE else code


class AppendResult(NamedTuple):
    """What became of an append: the offset of its first record, or an error."""

    base_offset: int
    error: ErrorCode


class Journal:
    """One partition of an internal topic, in one leader epoch."""

    def __init__(self, partition: Partition, now_ms: Callable[[], int]) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self._now_ms = now_ms

    @property
    def is_current(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        done: Callable[[AppendResult], None],
        *,
        producer: ProducerIdentity | None = None,
    ) -> int:
        """Write key-value pairs as one batch; `done` is called once they are committed, or failed.

        Returns the offset of the first one; -1 if it failed at once, in which case `done` was called.
        """
        now_ms = self._now_ms()
        batch = build_batch(
            [Record(key=key, value=value, timestamp_ms=now_ms) for key, value in records],
            producer_id=-1 if producer is None else producer.producer_id,
            producer_epoch=-1 if producer is None else producer.producer_epoch,
            is_transactional=producer is not None,
        )
        try:
            if not self.is_current:
                raise RequestError(ErrorCode.not_leader_or_follower)
            appended = self.partition.append_internal(batch, now_ms)
        except RequestError as error:
            done(AppendResult(-1, coordinator_error(error.code)))
            return -1
        except StorageError as error:
            _failed(self.partition.tp, self.partition.tp, error)
            done(AppendResult(-1, ErrorCode.coordinator_not_available))
            return -1

        def acknowledged(error: RequestError | None) -> None:
            code = ErrorCode.none if error is None else coordinator_error(error.code)
            done(AppendResult(appended.base_offset, code))

        self.partition.when_acked(appended.next_offset, ACKS_ALL, acknowledged)
        return appended.base_offset

    async def write(
        self, records: Sequence[tuple[bytes, bytes | None]], *, producer: ProducerIdentity | None = None
    ) -> int:
        """Append and wait until committed. Returns the offset of the first record, or raises RequestError."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()

        def done(written: AppendResult) -> None:
            if not future.done():
                future.set_result(written)

        self.append(records, done, producer=producer)
        written = await future
        if written.error is not ErrorCode.none:
            raise RequestError(written.error)
        return written.base_offset

    async def load(self, apply: Callable[[BatchHeader, Buffer], None]) -> bool:
        """Apply every batch of the log, oldest first; False if this node lost the lead meanwhile.

        Returns only once all of it is committed: a new leader may have records that are lost if it dies.
        """
        partition, offset = self.partition, self.partition.log_start_offset
        while True:
            offset = await self._replay(apply, offset)
            await self.settled(offset)
            if not self.is_current or partition.high_watermark < offset:
                return False
            if partition.log_end_offset <= offset:
                return True  # else more was appended meanwhile

    async def settled(self, end: int | None = None) -> None:
        """Wait until everything before `end`, or all there is now, is committed or can no longer be."""
        end = self.partition.log_end_offset if end is None else end
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_error: RequestError | None) -> None:
            if not settled.done():
                settled.set_result(None)

        self.partition.when_acked(end, ACKS_ALL, done)
        await settled

    async def _replay(self, apply: Callable[[BatchHeader, Buffer], None], offset: int) -> int:
        """Apply what the log has from `offset` on; returns where it ended."""
        partition, end = self.partition, self.partition.log_end_offset
        while offset < end:
            found = await partition.read(offset, READ_BYTES, end)
            before = offset
            for buffer in found.buffers:
                for position, header in headers(buffer):
                    if header.next_offset > offset:
                        offset = header.next_offset
                        apply(header, memoryview(buffer)[position : position + header.size_bytes])
            if offset == before:
                return end  # compaction left a gap up to the end
            await asyncio.sleep(0)  # a long replay must not hold up everybody else
        return offset
