"""A partition, as requests see it: appends and their acknowledgement, reads, deletions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from functools import partial
from typing import Final, NamedTuple

from chronik.links.frames import Data
from chronik.links.link import Link
from chronik.log_lines import RepeatingLine
from chronik.model import (
    NO_EPOCH,
    ChronikError,
    ErrorCode,
    RequestError,
)
from chronik.records.batch import (
    OVERHEAD_BYTES,
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_batch,
    check_batches,
    stamp,
    stamp_append_time,
)
from chronik.records.timestamps import is_believable
from chronik.replication.admission import Admitted, TooMuchForLoop, admit
from chronik.replication.replica import Replica
from chronik.replication.waiters import AckCallback, AckWaiter
from chronik.storage import reading
from chronik.storage.deletion_lines import age_text, log_deletion
from chronik.storage.disk import IoThread
from chronik.storage.epochs import EpochHistory
from chronik.storage.log_parts import SegmentDamage
from chronik.storage.reading import LogSlice, TimestampedOffset

_served_from_store = RepeatingLine(
    logging.getLogger(__name__), logging.WARNING, "%s: %s; the object store has the records"
)

ACKS_ALL: Final = -1


class Appended(NamedTuple):
    base_offset: int
    next_offset: int
    log_append_time_ms: int


class Partition(Replica):
    """What requests do with a replica: append to it, wait for it, read it, delete from it."""

    __slots__ = ()

    def require_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Refuse a request that should have gone elsewhere or was meant for another epoch (KIP-320)."""
        if current_leader_epoch >= 0:
            self.check_epoch(current_leader_epoch)
        if self.halted_epoch == self.leader_epoch:
            raise RequestError(ErrorCode.kafka_storage_error, f"node {self.node_id}'s disk failed {self.tp}")
        if self.leader_id != self.node_id:
            raise RequestError(
                ErrorCode.not_leader_or_follower, f"node {self.node_id} does not lead {self.tp}"
            )

    def check_epoch(self, current_leader_epoch: int) -> None:
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise RequestError(
                ErrorCode.fenced_leader_epoch, f"{self.tp} is at epoch {self.leader_epoch} now"
            )
        raise RequestError(ErrorCode.unknown_leader_epoch, f"{self.tp} is still at epoch {self.leader_epoch}")

    # --- appending ---------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        acks: int,
        now_ms: int,
        *,
        in_transaction: bool = False,
        admitted: Admitted | None = None,
    ) -> Appended:
        """Leader: check a client's batch and put it into the log. Nothing is acknowledged yet.

        Sequence check and append happen in one turn of the loop, so batches cannot race past it (T18).
        A transactional batch is taken only `in_transaction`: its coordinator has been asked (KIP-890).
        TooMuchForLoop: `look_into` it first, and pass what that finds as `admitted`.
        """
        if self.leader_id != self.node_id or self.halted_epoch == self.leader_epoch:
            self.require_leader()
        if self.is_internal:
            raise RequestError(
                ErrorCode.invalid_topic_exception, f"Cannot append to internal topic {self.tp.topic}"
            )
        if acks == ACKS_ALL and self.lacks_replicas:
            self.require_enough_replicas()
        header = check_batch(records)
        if header.batch_length + OVERHEAD_BYTES != len(records):
            raise RequestError(ErrorCode.invalid_record, "a produce request carries one batch per partition")
        if header.attributes & TRANSACTIONAL_MASK and not in_transaction:
            raise RequestError(
                ErrorCode.transactional_id_authorization_failed, "a transactional batch without its id"
            )
        if admitted is None:
            records, header = admit(records, header, self.config, now_ms, True)
        elif admitted.config == self.config:
            records, header = admitted.records, admitted.header
        else:
            raise TooMuchForLoop
        if header.producer_id >= 0 and (duplicate := self._check_producer(header)) is not None:
            return duplicate
        append_time = -1
        if self.config.stamps_append_time:
            append_time = now_ms
            stamp_append_time(records, 0, len(records), now_ms)
            header = header._replace(max_timestamp=now_ms)
        base_offset = self.log.append(records, header, self.leader_epoch, now_ms)
        if self._followers:
            self._feed.appended(self)
        return Appended(base_offset, base_offset + header.last_offset_delta + 1, append_time)

    async def look_into(self, records: memoryview, now_ms: int) -> Admitted:
        """Check a client's batch in an I/O thread. Whatever else `append` checks may change meanwhile."""
        config = self.config
        check = partial(admit, records, check_batch(records), config, now_ms)
        return Admitted(*await self.log.disk.run(IoThread.RECORDS, check), config)

    def append_internal(self, batch: bytearray, now_ms: int) -> Appended:
        """Leader: put in a batch that this node built itself (coordinators, transaction markers)."""
        self.require_leader()
        self.require_enough_replicas()
        header = check_batch(batch)
        base_offset = self.log.append(memoryview(batch), header, self.leader_epoch, now_ms)
        if self._followers:
            self._feed.appended(self)
        return Appended(base_offset, base_offset + header.last_offset_delta + 1, -1)

    def append_restored(self, batches: memoryview, log_end_offset: int, now_ms: int) -> Appended:
        """Leader: put batches of a backup into the log at the offsets that they had; gaps stay gaps.

        `log_end_offset` is where the caller saw this log end, so that nothing is taken in twice.
        """
        self.require_leader()
        self.require_enough_replicas()
        first = end = self.log.log_end_offset
        if self.is_internal or first != log_end_offset:
            raise RequestError(
                ErrorCode.invalid_request, f"{self.tp} ends at {first} and cannot be continued from outside"
            )
        found = []
        for position, header in check_batches(batches):
            if header.base_offset < end:
                raise RequestError(
                    ErrorCode.offset_out_of_range, f"{self.tp} has offset {header.base_offset} already"
                )
            end = header.next_offset
            stamp(batches[position : position + header.size_bytes], 0, header.base_offset, self.leader_epoch)
            found.append((position, header._replace(leader_epoch=self.leader_epoch)))
        self.log.append_replicated(batches, found, now_ms)
        self.writers.note(first, None)
        if self._followers:
            self._feed.appended(self)
        return Appended(first, end, -1)

    def append_replicated(self, link: Link, data: Data, batches: memoryview, now_ms: int) -> bool:
        """Follower: append what the leader sent; False if it does not continue this log."""
        if self.feeder is not link or data.prev_end_offset != self.log.log_end_offset:
            return False
        self.log.append_replicated(batches, check_batches(batches), now_ms)
        if data.high_watermark > self.leader_high_watermark or data.log_start_offset != self.leader_log_start:
            self.leader_reported(data.high_watermark, data.log_start_offset)
        return True

    def require_enough_replicas(self) -> None:
        if self.lacks_replicas:
            needed = min(self.config.min_insync_replicas, len(self.replicas))
            raise RequestError(
                ErrorCode.not_enough_replicas,
                f"{self.tp} has {len(self.isr)} in-sync replicas, needs {needed}",
            )

    def _check_producer(self, header: BatchHeader) -> Appended | None:
        producers = self.log.producers
        if producers is None:
            return None
        span = producers.check(
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            record_count=header.last_offset_delta + 1,
            is_transactional=header.is_transactional,
        )
        if span is None:
            return None
        return Appended(span.base_offset, span.last_offset + 1, -1)

    def when_acked(self, next_offset: int, acks: int, callback: AckCallback) -> None:
        """Call back when records before `next_offset` are durable here (acks=1) or committed (acks=all)."""
        if acks == ACKS_ALL:
            if next_offset <= self.high_watermark:
                callback(None)
            else:
                self._committed_waiters.append(AckWaiter(next_offset, callback))
        elif next_offset <= self.log.durable_end_offset:
            callback(None)
        else:
            self._durable_waiters.append(AckWaiter(next_offset, callback))

    # --- reading -----------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Where the oldest open transaction starts, or the watermark: how far read_committed sees."""
        producers = self.log.producers
        return self.high_watermark if producers is None else producers.last_stable_offset(self.high_watermark)

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    def was_read(self, size_bytes: int) -> None:
        """A client fetched so much."""
        self.read_bytes += size_bytes

    def read_now(
        self, offset: int, bytes_max: int, limit_offset: int, *, min_one_batch: bool = True
    ) -> LogSlice | None:
        if self.remote is not None and self._is_remote(offset):
            return None
        return reading.read_now(self.log, offset, bytes_max, limit_offset, min_one_batch=min_one_batch)

    async def read(
        self,
        offset: int,
        bytes_max: int,
        limit_offset: int,
        *,
        min_one_batch: bool = True,
        until: float | None = None,
        asker: Hashable = None,
    ) -> LogSlice:
        """`until`: when to give up on a slow object store, by the loop's clock; `asker`: the connection whose
        share of reads from there it is."""
        remote = self.remote
        if remote is None or not self._is_remote(offset):
            is_stored = remote is not None and remote.start_offset <= offset < remote.end_offset
            how = {"min_one_batch": min_one_batch, "is_elsewhere": is_stored}
            try:
                found = await reading.read(self.log, offset, bytes_max, limit_offset, **how)
            except SegmentDamage as damage:
                _served_from_store(self.tp, self.tp, damage)
            else:
                # Local retention may have taken the records meanwhile: what was read is behind them then.
                if self.remote is None or not self._is_remote(offset):
                    return found
        logs = self._context.remote_logs
        return await logs.read(self, offset, bytes_max, min_one_batch=min_one_batch, until=until, asker=asker)

    def _is_remote(self, offset: int) -> bool:
        """Whether only the object store has the record."""
        return self.log_start_offset <= offset < self.log.log_start_offset

    def aborted_transactions(self, fetch_offset: int, found: LogSlice) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions that touch what was read."""
        return reading.aborted_transactions(self.log, fetch_offset, found)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where this log parts from that of a reader whose last batch had `last_fetched_epoch` (KIP-595)."""
        return reading.diverging_epoch(self.log, last_fetched_epoch, fetch_offset)

    async def offset_for_timestamp(
        self, timestamp: int, limit_offset: int | None = None
    ) -> TimestampedOffset | None:
        limit = self.high_watermark if limit_offset is None else limit_offset
        while True:
            local_start = self.log.log_start_offset
            if self.log_start_offset < local_start:
                found = await self._context.remote_logs.offset_for_timestamp(self, timestamp)
                if found is not None:
                    return found if found.offset < limit else None
            found = await reading.offset_for_timestamp(self.log, timestamp, limit)
            if self.remote is None or self.log.log_start_offset == local_start:
                return found  # else local retention has taken records that nobody looked at

    async def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        found = await reading.offset_of_max_timestamp(self.log)
        if self.log_start_offset < self.log.log_start_offset:
            highest = await self._context.remote_logs.max_timestamp(self)
            if highest >= 0 and (found is None or found.timestamp_ms <= highest):
                remote = await self._context.remote_logs.offset_for_timestamp(self, highest)
                return remote or found
        return found

    async def epochs(self) -> EpochHistory:
        """The leader epochs of the whole log, remote and local."""
        if self.log_start_offset < self.log.log_start_offset:
            return await self._context.remote_logs.epochs(self)
        return self.log.epochs

    async def delete_records(self, offset: int, now_ms: int) -> int:
        """Leader: forget records before `offset` (-1: before the watermark), on all live replicas.

        Returns the new log start offset.
        """
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"{self.tp} can be cut up to {self.high_watermark}, not {offset}",
            )
        await self._tell_deletion(target, now_ms)
        self.require_leader()  # that may have taken a read from disk
        if self.is_tiered:
            await self._context.remote_logs.delete_before(self, target)
        else:
            await self.log.advance_start(target)
        self._feed.appended(self)
        followed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if not followed.done():
                followed.set_result(None) if error is None else followed.set_exception(error)

        waiter = AckWaiter(target, done)
        self._start_waiters.append(waiter)
        try:
            self._check_low_watermark()
            await followed
        finally:
            if waiter in self._start_waiters:
                self._start_waiters.remove(waiter)
        return max(self.log_start_offset, target) if self.is_tiered else self.low_watermark

    async def _tell_deletion(self, target: int, now_ms: int) -> None:
        if target <= self.log.log_start_offset:
            return
        age = "of unknown age"
        try:
            last_ms = await reading.timestamp_before(self.log, target)
        except (OSError, ChronikError):
            last_ms = None  # what cannot be read can be deleted
        if last_ms is not None and is_believable(last_ms, now_ms):
            age = age_text(last_ms, now_ms, is_dated=True)
        if target > self.log.log_start_offset:
            log_deletion(self.log, target, age=age, rule="DeleteRecords")
