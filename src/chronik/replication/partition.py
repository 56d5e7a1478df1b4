"""One replica of a partition on this node: appends, acknowledgements, the high watermark, reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from chronik.metadata.topic_config import TopicConfig
from chronik.metadata.values import Partition as Assignment
from chronik.model import NO_EPOCH, NO_LEADER, ErrorCode, NodeId, RequestError, StorageError, TopicPartition
from chronik.records.batch import (
    OVERHEAD_BYTES,
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_batch,
    headers,
    stamp_append_time,
)
from chronik.replication.admission import admit
from chronik.replication.link import Link
from chronik.replication.progress import FollowerProgress
from chronik.replication.watermark import follower_watermark, leader_watermark
from chronik.storage import reading
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.reading import LogSlice, TimestampedOffset

ACKS_ALL: Final = -1

AckCallback: TypeAlias = Callable[[RequestError | None], None]


class Appended(NamedTuple):
    base_offset: int
    next_offset: int
    log_append_time_ms: int
    is_duplicate: bool


class PartitionHooks(Protocol):
    """What replication does when something happens to a partition of this node."""

    def changed(self, partition: Partition) -> None:
        """Leader, epoch, ISR or replicas are new."""

    def appended(self, partition: Partition) -> None:
        """Leader: there are batches, or a log start, that followers do not know."""

    def watermark_moved(self, partition: Partition) -> None:
        """Leader: there is a watermark that followers do not know."""

    def durable(self, partition: Partition) -> None:
        """Follower: more of the log is on disk."""

    def start_moved(self, partition: Partition, log_start_offset: int) -> None:
        """Follower: the leader's log starts later now."""

    def is_alive(self, node_id: NodeId) -> bool:
        """Whether the cluster counts a node as alive."""

    def halted(self, partition: Partition) -> None:
        """Leader: its disk failed an append; a new epoch is needed before it may go on."""

    def refused(self, partition: Partition) -> None:
        """Follower: what it was sent is gone (its disk failed, the replica goes) and has to be sent again."""


class _AckWaiter(NamedTuple):
    next_offset: int
    callback: AckCallback


def log_config(config: TopicConfig) -> LogConfig:
    segment_ms = config.segment_ms
    if config.is_compacted:
        # Only ended segments are compacted: one must end before its records are too old to wait.
        segment_ms = min(segment_ms, config.max_compaction_lag_ms)
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=segment_ms,
        segment_jitter_ms=config.segment_jitter_ms,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
    )


class Partition:
    """Follows nobody and leads nothing until `assign` tells what the cluster decided."""

    __slots__ = (
        "_committed_waiters",
        "_durable_waiters",
        "_hooks",
        "_start_waiters",
        "_watchers",
        "config",
        "feeder",
        "followers",
        "halted_epoch",
        "high_watermark",
        "isr",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "log",
        "node_id",
        "partition_epoch",
        "pending_isr",
        "replicas",
        "told_start",
        "told_watermark",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        *,
        tp: TopicPartition,
        topic_id: UUID,
        node_id: NodeId,
        log: PartitionLog,
        config: TopicConfig,
        hooks: PartitionHooks,
        high_watermark: int = 0,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.node_id = node_id
        self.log = log
        self.config = config
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.replicas: tuple[NodeId, ...] = ()
        self.isr: tuple[NodeId, ...] = ()
        self.followers: dict[NodeId, FollowerProgress] = {}
        """What is known of each follower in this leader epoch; empty unless this node leads."""
        self.pending_isr: tuple[NodeId, ...] | None = None
        """An ISR that was proposed and is not decided yet."""
        self.feeder: Link | None = None
        """Where a follower's batches come from and its acknowledgements go to."""
        self.told_watermark = 0
        self.told_start = 0
        self.halted_epoch = NO_EPOCH - 1
        self._hooks = hooks
        self.leader_epoch_start_offset = 0
        self.high_watermark = max(high_watermark, log.log_start_offset)
        """Everything before is on every in-sync replica. Moves only in `_raise_watermark`."""
        self._durable_waiters: deque[_AckWaiter] = deque()
        self._committed_waiters: deque[_AckWaiter] = deque()
        self._start_waiters: deque[_AckWaiter] = deque()
        self._watchers: dict[Callable[[], None], None] = {}
        log.subscribe(self)

    # --- roles -------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.node_id

    def assign(self, assignment: Assignment) -> None:
        """Take over leader, epoch and ISR as the metadata log has them now."""
        if assignment.partition_epoch < self.partition_epoch:
            return
        if assignment.partition_epoch > self.partition_epoch:
            self.pending_isr = None  # it was this change, or it will be refused
        if assignment.leader_epoch != self.leader_epoch:
            self.followers.clear()
            self.feeder = None
            self.told_start = 0
            self.leader_epoch_start_offset = self.log.log_end_offset
            self._fail_waiters(RequestError(ErrorCode.not_leader_or_follower, f"{self.tp} has a new leader"))
        self.leader_id = assignment.leader
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.replicas = assignment.replicas
        self.isr = assignment.isr
        self._hooks.changed(self)
        self.update_watermark()
        self.check_low_watermark()
        self._wake_watchers()

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

    def close(self, error: RequestError) -> None:
        """The partition is gone from this node: it leads and follows no more, and nobody waits for it."""
        self.leader_id = NO_LEADER
        self.followers.clear()
        self.feeder = None
        self.pending_isr = None
        self._fail_waiters(error)
        self._wake_watchers()

    # --- appending ---------------------------------------------------------------------------------

    def append(
        self, records: memoryview, acks: int, now_ms: int, *, in_transaction: bool = False
    ) -> Appended:
        """Leader: check a client's batch and put it into the log. Nothing is acknowledged yet.

        Sequence check and append happen in one turn of the loop, so batches cannot race past it (T18).
        A transactional batch is taken only `in_transaction`: its coordinator has been asked (KIP-890).
        """
        self.require_leader()
        if acks == ACKS_ALL:
            self.require_enough_replicas()
        header = check_batch(records)
        if header.batch_length + OVERHEAD_BYTES != len(records):
            raise RequestError(ErrorCode.invalid_record, "a produce request carries one batch per partition")
        if header.attributes & TRANSACTIONAL_MASK and not in_transaction:
            raise RequestError(
                ErrorCode.transactional_id_authorization_failed, "a transactional batch without its id"
            )
        records, header = admit(records, header, self.config, now_ms)
        if header.producer_id >= 0 and (duplicate := self._check_producer(header)) is not None:
            return duplicate
        append_time = -1
        if self.config.stamps_append_time:
            append_time = now_ms
            stamp_append_time(records, 0, len(records), now_ms)
            header = header._replace(max_timestamp=now_ms)
        return self._append(records, header, append_time, now_ms)

    def append_internal(self, batch: bytearray, now_ms: int) -> Appended:
        """Leader: put in a batch that this node built itself (coordinators, transaction markers)."""
        self.require_leader()
        self.require_enough_replicas()
        return self._append(memoryview(batch), check_batch(batch), -1, now_ms)

    def _append(self, records: memoryview, header: BatchHeader, append_time: int, now_ms: int) -> Appended:
        base_offset = self.log.append(records, header, self.leader_epoch, now_ms)
        if self.followers:
            self._hooks.appended(self)
        return Appended(base_offset, base_offset + header.last_offset_delta + 1, append_time, False)

    def require_enough_replicas(self) -> None:
        if len(self.isr) < self.config.min_insync_replicas:
            raise RequestError(
                ErrorCode.not_enough_replicas,
                f"{self.tp} has {len(self.isr)} in-sync replicas, needs {self.config.min_insync_replicas}",
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
        return Appended(span.base_offset, span.last_offset + 1, -1, True)

    def when_acked(self, next_offset: int, acks: int, callback: AckCallback) -> None:
        """Call back when records before `next_offset` are durable here (acks=1) or committed (acks=all)."""
        if acks == ACKS_ALL:
            if next_offset <= self.high_watermark:
                callback(None)
            else:
                self._committed_waiters.append(_AckWaiter(next_offset, callback))
        elif next_offset <= self.log.durable_end_offset:
            callback(None)
        else:
            self._durable_waiters.append(_AckWaiter(next_offset, callback))

    # --- durability and the watermark ----------------------------------------------------------------

    def on_durable(self, end_offset: int) -> None:
        _serve(self._durable_waiters, end_offset)
        if self.leader_id == self.node_id:
            self.update_watermark()
        else:
            self._hooks.durable(self)
            self.on_told_watermark(self.told_watermark)
            if self.told_start > self.log.log_start_offset:
                self.follow_log_start(self.told_start)

    def on_rejected(self, end_offset: int, error: StorageError) -> None:
        refusal = RequestError(ErrorCode.kafka_storage_error, str(error))
        if self.followers:
            # Followers may have what this disk refused: these offsets are not given out again in this epoch.
            self.halted_epoch = self.leader_epoch
            self._hooks.halted(self)
        elif self.feeder is not None:
            self._hooks.refused(self)
        for waiters in (self._durable_waiters, self._committed_waiters):
            failed = [waiter for waiter in waiters if waiter.next_offset > end_offset]
            kept = [waiter for waiter in waiters if waiter.next_offset <= end_offset]
            waiters.clear()
            waiters.extend(kept)
            for waiter in failed:
                waiter.callback(refusal)

    def update_watermark(self) -> None:
        """Leader: move the watermark as far as every member of the ISR, present or proposed, allows."""
        if self.leader_id == self.node_id:
            isr = self.isr if self.pending_isr is None else {*self.isr, *self.pending_isr}
            ends = {peer: one.acked_end for peer, one in self.followers.items() if one.acked_end >= 0}
            own = self.log.durable_end_offset
            self._raise_watermark(leader_watermark(self.high_watermark, isr, self.node_id, own, ends))

    def on_told_watermark(self, told_by_leader: int) -> None:
        """Follower: the leader's watermark as of its last message."""
        self.told_watermark = max(self.told_watermark, told_by_leader)
        self._raise_watermark(
            follower_watermark(self.high_watermark, self.told_watermark, self.log.durable_end_offset)
        )

    def follow_log_start(self, log_start_offset: int) -> None:
        """Follower: the leader deleted old records; so does this replica, once its watermark is that far."""
        self.told_start = log_start_offset
        if self.log.log_start_offset < log_start_offset <= self.high_watermark:
            self._hooks.start_moved(self, log_start_offset)

    def log_restarted(self) -> None:
        """Follower: the log was emptied because the leader keeps nothing that old."""
        self.high_watermark = max(self.high_watermark, self.log.log_start_offset)

    def _raise_watermark(self, offset: int) -> None:
        """The only place where the watermark moves (S24)."""
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self.followers:
            self._hooks.watermark_moved(self)
        if self.log.producers is not None:
            self.log.producers.advance_high_watermark(offset)
        _serve(self._committed_waiters, offset, self._too_few())
        self._wake_watchers()

    def _too_few(self) -> RequestError | None:
        """What acks=all is told if the ISR shrank too far after its append: written, but not safely."""
        if self.leader_id != self.node_id or len(self.isr) >= self.config.min_insync_replicas:
            return None
        return RequestError(
            ErrorCode.not_enough_replicas_after_append, f"{self.tp} has {len(self.isr)} in-sync replicas"
        )

    def _fail_waiters(self, error: RequestError) -> None:
        for waiters in (self._durable_waiters, self._committed_waiters, self._start_waiters):
            failed = list(waiters)
            waiters.clear()
            for waiter in failed:
                waiter.callback(error)

    # --- reading -----------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

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

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` each time readers may see more, or should look again, until `unwatch`."""
        self._watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.pop(wake, None)

    def _wake_watchers(self) -> None:
        if self._watchers:
            for wake in list(self._watchers):
                wake()

    def read_now(self, offset: int, bytes_max: int, limit_offset: int) -> LogSlice | None:
        return reading.read_now(self.log, offset, bytes_max, limit_offset)

    async def read(self, offset: int, bytes_max: int, limit_offset: int) -> LogSlice:
        return await reading.read(self.log, offset, bytes_max, limit_offset)

    def aborted_transactions(self, fetch_offset: int, found: LogSlice) -> list[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions that touch what was read."""
        producers = self.log.producers
        if producers is None or not found.size_bytes:
            return []
        upper = max(fetch_offset + 1, self._end_of(found))
        return [(txn.producer_id, txn.first_offset) for txn in producers.aborted_between(fetch_offset, upper)]

    def _end_of(self, found: LogSlice) -> int:
        end = 0
        for buffer in found.buffers:
            for _, header in headers(buffer):
                end = header.next_offset
        return end

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where this log parts from that of a reader whose last batch had `last_fetched_epoch` (KIP-595)."""
        if last_fetched_epoch < 0:
            return None
        epoch, end_offset = self.log.epochs.end_offset(last_fetched_epoch, self.log.log_end_offset)
        if epoch < 0 or (epoch >= last_fetched_epoch and end_offset >= fetch_offset):
            return None
        return epoch, end_offset

    async def offset_for_timestamp(
        self, timestamp: int, limit_offset: int | None = None
    ) -> TimestampedOffset | None:
        limit = self.high_watermark if limit_offset is None else limit_offset
        return await reading.offset_for_timestamp(self.log, timestamp, limit)

    async def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        return await reading.offset_of_max_timestamp(self.log)

    async def delete_records(self, offset: int) -> int:
        """Leader: forget records before `offset` (-1: before the watermark), on all live replicas.

        Returns the new log start offset.
        """
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"{self.tp} can be cut up to {self.high_watermark}, not {offset}",
            )
        await self.log.advance_start(target)
        self._hooks.appended(self)
        followed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if not followed.done():
                followed.set_result(None) if error is None else followed.set_exception(error)

        waiter = _AckWaiter(target, done)
        self._start_waiters.append(waiter)
        try:
            self.check_low_watermark()
            await followed
        finally:
            if waiter in self._start_waiters:
                self._start_waiters.remove(waiter)
        return self.low_watermark

    @property
    def low_watermark(self) -> int:
        """Leader: where the logs of all live replicas start, the earliest of them."""
        starts = [one.log_start_offset for peer, one in self.followers.items() if self._hooks.is_alive(peer)]
        return min([self.log.log_start_offset, *starts])

    def check_low_watermark(self) -> None:
        """Leader: a replica's log starts later now, or is not waited for any more."""
        if self._start_waiters:
            low_watermark = self.low_watermark
            for waiter in [one for one in self._start_waiters if one.next_offset <= low_watermark]:
                waiter.callback(None)


def _serve(waiters: deque[_AckWaiter], offset: int, error: RequestError | None = None) -> None:
    while waiters and waiters[0].next_offset <= offset:
        waiters.popleft().callback(error)
