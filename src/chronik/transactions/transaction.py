"""One transactional id as a pure state machine.

    EMPTY            --add partition-->     ONGOING
    ONGOING          --commit-->            PREPARE_COMMIT   --all markers written-->  COMPLETE_COMMIT
    ONGOING          --abort, time-out-->   PREPARE_ABORT    --all markers written-->  COMPLETE_ABORT
    COMPLETE_*       --add partition-->     ONGOING
    COMPLETE_*, EMPTY --init-->             EMPTY (a new epoch, the old one is fenced)
    EMPTY, COMPLETE_* --idle for long-->    DEAD (tombstone)

Each request is a function from the present record to the next one, or a RequestError. Nothing counts
before its record is durable: `begin` notes the next record, `done` makes it the present one, and until then
every other request is told `concurrent_transactions`, which clients retry.

The epoch: InitProducerId raises it (KIP-98, KIP-360); with transactions of version 2 every end raises it as
well (KIP-890), so that a late write of an ended transaction is fenced by the partition itself. A time-out
raises it too, which fences the producer that was too slow.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from chronik.model import ErrorCode, RequestError, TopicPartition, invariant, violated

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
EPOCH_MAX: Final = 2**15 - 1
V2: Final = 2


class TxnState(enum.IntEnum):
    """The numbers are those in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        """The name that Kafka's tools print."""
        return "".join(word.capitalize() for word in self.name.split("_"))


ENDED: Final = frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})
TXN_BYTES: Final = 1_000
"""A transactional id's own objects."""
PARTITION_BYTES: Final = 250
"""A partition of an open transaction."""
PREPARED: Final = frozenset({TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})

NEXT: Final[dict[TxnState, frozenset[TxnState]]] = {
    TxnState.EMPTY: frozenset(
        {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT, TxnState.DEAD},
    ),
    TxnState.ONGOING: frozenset({TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT}),
    TxnState.PREPARE_COMMIT: frozenset({TxnState.COMPLETE_COMMIT}),
    TxnState.PREPARE_ABORT: frozenset({TxnState.COMPLETE_ABORT}),
    TxnState.COMPLETE_COMMIT: frozenset(
        {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT, TxnState.DEAD},
    ),
    TxnState.COMPLETE_ABORT: frozenset(
        {TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_ABORT, TxnState.DEAD},
    ),
    TxnState.DEAD: frozenset(),
}


class TxnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a transactional id: the contents of its record."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The previous epoch. It identifies a retry of the request that raised the epoch. Not persisted."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before `producer_id`. Set when its epochs were exhausted and it was replaced."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id to use after this transaction. Set while it ends, if the epochs are exhausted."""
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    updated_ms: int = -1
    version: int = 0
    """2: transactions as of KIP-890."""

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether no epoch is left for a producer. The last one is reserved for fencing."""
        return self.producer_epoch >= EPOCH_MAX - 1


class TransactionMetadata:
    """The present record of one transactional id, and the one that is on its way to the log."""

    __slots__ = ("coordinator_epoch", "pending", "record", "transactional_id")

    def __init__(self, transactional_id: str, record: TxnRecord, *, coordinator_epoch: int) -> None:
        self.transactional_id = transactional_id
        self.record = record
        self.pending: TxnRecord | None = None
        self.coordinator_epoch = coordinator_epoch
        """The leader epoch under which this coordinator works; markers carry it."""

    def size_bytes(self) -> int:
        """What it makes a node remember, about."""
        return TXN_BYTES + len(self.transactional_id) + PARTITION_BYTES * len(self.record.partitions)

    def begin(self, record: TxnRecord) -> TxnRecord:
        """`record` goes to the log now."""
        invariant(self.pending is None, "a second record while the first is not written yet")
        fresh = self.record.producer_epoch == NO_PRODUCER_EPOCH
        invariant(
            fresh or record.state in NEXT[self.record.state],
            f"transaction moved from {self.record.state} to {record.state}",
        )
        self.pending = record
        return record

    def done(self) -> TxnRecord:
        """The pending record is durable: it counts."""
        if self.pending is None:
            violated("no record was on its way")
        self.record, self.pending = self.pending, None
        return self.record

    def failed(self) -> None:
        self.pending = None

    # -- InitProducerId ---------------------------------------------------------------------------

    def init_producer(
        self,
        *,
        timeout_ms: int,
        expected_producer_id: int = NO_PRODUCER_ID,
        expected_epoch: int = NO_PRODUCER_EPOCH,
        new_producer_id: int | None,
        now_ms: int,
    ) -> TxnRecord:
        """The record with the epoch to use.

        In PREPARE_ABORT it aborts what the last producer left open: finish that, and let the client retry
        (concurrent_transactions). `new_producer_id` is needed when `record.is_epoch_exhausted`.
        """
        record = self.record
        self._refuse_while_pending()
        fresh = record.producer_epoch == NO_PRODUCER_EPOCH
        known = (record.producer_id, record.previous_producer_id)
        if expected_producer_id != NO_PRODUCER_ID and not fresh and expected_producer_id not in known:
            raise RequestError(ErrorCode.producer_fenced)
        if record.state in PREPARED:
            raise RequestError(ErrorCode.concurrent_transactions)
        invariant(record.state is not TxnState.DEAD, "a dead transactional id was used")
        if record.state is TxnState.ONGOING:
            if expected_epoch not in (NO_PRODUCER_EPOCH, record.producer_epoch):
                raise RequestError(ErrorCode.producer_fenced)
            return self._fence(now_ms, new_producer_id)
        return self._raise_epoch(timeout_ms, expected_epoch, new_producer_id, now_ms)

    def _raise_epoch(
        self, timeout_ms: int, expected_epoch: int, new_producer_id: int | None, now_ms: int
    ) -> TxnRecord:
        record = self.record
        given = expected_epoch != NO_PRODUCER_EPOCH and record.producer_epoch != NO_PRODUCER_EPOCH
        if given and expected_epoch != record.producer_epoch:
            if expected_epoch == record.last_producer_epoch:
                return record  # the answer got lost and the request came again: it has its epoch already
            raise RequestError(ErrorCode.producer_fenced)
        cleared = msgspec.structs.replace(
            record,
            state=TxnState.EMPTY,
            partitions=frozenset(),
            timeout_ms=timeout_ms,
            started_ms=-1,
            updated_ms=now_ms,
        )
        if record.is_epoch_exhausted:
            return msgspec.structs.replace(
                cleared,
                producer_id=_given(new_producer_id),
                producer_epoch=0,
                last_producer_epoch=record.producer_epoch if given else NO_PRODUCER_EPOCH,
                previous_producer_id=record.producer_id,
            )
        return msgspec.structs.replace(
            cleared,
            producer_epoch=record.producer_epoch + 1,
            last_producer_epoch=record.producer_epoch if given else NO_PRODUCER_EPOCH,
        )

    # -- adding -----------------------------------------------------------------------------------

    def add_partitions(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        now_ms: int,
        version: int = 0,
    ) -> TxnRecord | None:
        """The record with these partitions in it; None: they already are."""
        record = self.record
        self._check_producer(producer_id, producer_epoch)
        self._refuse_while_pending()
        if record.state in PREPARED:
            raise RequestError(ErrorCode.concurrent_transactions)
        if record.state is TxnState.ONGOING:
            if partitions <= record.partitions:
                return None
            return msgspec.structs.replace(
                record, partitions=record.partitions | partitions, updated_ms=now_ms, version=version
            )
        return msgspec.structs.replace(
            record,
            state=TxnState.ONGOING,
            partitions=partitions,
            started_ms=now_ms,
            updated_ms=now_ms,
            last_producer_epoch=NO_PRODUCER_EPOCH,
            version=version,
        )

    def verify_partition(self, *, producer_id: int, producer_epoch: int, tp: TopicPartition) -> None:
        """Is a write to this partition part of the open transaction (KIP-890)? Raises RequestError."""
        self._check_producer(producer_id, producer_epoch)
        self._refuse_while_pending()
        if self.record.state in PREPARED:
            raise RequestError(ErrorCode.concurrent_transactions)
        if self.record.state is not TxnState.ONGOING or tp not in self.record.partitions:
            raise RequestError(ErrorCode.transaction_abortable, f"{tp} is not part of the transaction")

    # -- ending -----------------------------------------------------------------------------------

    def end(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        now_ms: int,
        version: int = 0,
        new_producer_id: int | None = None,
    ) -> TxnRecord | None:
        """The prepared record: write it, then the markers, then `complete`. None: it has ended so already."""
        if version >= V2:
            return self._end_v2(producer_id, producer_epoch, commit, now_ms, new_producer_id)
        record = self.record
        self._check_producer(producer_id, producer_epoch)
        self._refuse_while_pending()
        if record.state is TxnState.ONGOING:
            # The markers keep this epoch, so they are not of V2, whoever added the partitions.
            return msgspec.structs.replace(self._prepare(commit=commit, now_ms=now_ms), version=version)
        self._end_again(commit=commit)
        return None

    def _end_v2(
        self, producer_id: int, producer_epoch: int, commit: bool, now_ms: int, new_producer_id: int | None
    ) -> TxnRecord | None:
        record = self.record
        # A retry: the first request has raised the epoch (or changed the id) already.
        bumped = producer_id == record.producer_id and producer_epoch == record.producer_epoch - 1
        rotated = (
            producer_id == record.previous_producer_id
            and producer_epoch >= EPOCH_MAX - 1
            and record.producer_epoch == 0
        )
        is_retry = (bumped or rotated) and record.state is not TxnState.ONGOING and record.version >= V2
        if not is_retry:
            self._check_producer(producer_id, producer_epoch)
        self._refuse_while_pending()
        if is_retry:
            if commit and record.state in (TxnState.PREPARE_ABORT, TxnState.COMPLETE_ABORT):
                raise RequestError(ErrorCode.producer_fenced, "the coordinator aborted this transaction")
            self._end_again(commit=commit)
            return None
        if record.state in PREPARED:
            raise RequestError(ErrorCode.concurrent_transactions)
        if record.state is not TxnState.ONGOING and commit:
            raise RequestError(ErrorCode.invalid_txn_state, "there is no open transaction to commit")
        return self._prepare_with_new_epoch(
            commit=commit, now_ms=now_ms, new_producer_id=new_producer_id, version=V2
        )

    def _end_again(self, *, commit: bool) -> None:
        """What a request to end means when the transaction is not open."""
        state = self.record.state
        if state is (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT):
            return
        if state is (TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT):
            raise RequestError(ErrorCode.concurrent_transactions)
        what = "commit" if commit else "abort"
        raise RequestError(ErrorCode.invalid_txn_state, f"cannot {what} in state {state.label}")

    def _prepare(self, *, commit: bool, now_ms: int) -> TxnRecord:
        state = TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT
        return msgspec.structs.replace(self.record, state=state, updated_ms=now_ms)

    def _prepare_with_new_epoch(
        self, *, commit: bool, now_ms: int, new_producer_id: int | None, version: int
    ) -> TxnRecord:
        record = self.record
        next_producer_id = NO_PRODUCER_ID
        if record.is_epoch_exhausted:
            next_producer_id = _given(new_producer_id)
        prepared = self._prepare(commit=commit, now_ms=now_ms)
        return msgspec.structs.replace(
            prepared,
            producer_epoch=min(record.producer_epoch + 1, EPOCH_MAX),
            last_producer_epoch=record.producer_epoch,
            next_producer_id=next_producer_id,
            partitions=record.partitions if record.state is TxnState.ONGOING else frozenset(),
            started_ms=record.started_ms if record.state is TxnState.ONGOING else now_ms,
            version=version,
        )

    def _fence(self, now_ms: int, new_producer_id: int | None) -> TxnRecord:
        """Abort what is open, with an epoch that its producer does not have."""
        return self._prepare_with_new_epoch(
            commit=False, now_ms=now_ms, new_producer_id=new_producer_id, version=self.record.version
        )

    def complete(self, *, now_ms: int) -> TxnRecord:
        """All markers are written."""
        record = self.record
        invariant(record.state in PREPARED, f"transaction completed in state {record.state}")
        is_commit = record.state is TxnState.PREPARE_COMMIT
        ended = msgspec.structs.replace(
            record,
            state=TxnState.COMPLETE_COMMIT if is_commit else TxnState.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=now_ms,
        )
        if record.next_producer_id == NO_PRODUCER_ID:
            return ended
        return msgspec.structs.replace(
            ended,
            producer_id=record.next_producer_id,
            producer_epoch=0,
            previous_producer_id=record.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    # -- time -------------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When the open transaction has to be aborted."""
        if self.record.state is not TxnState.ONGOING:
            return None
        return self.record.started_ms + self.record.timeout_ms

    def time_out(self, *, now_ms: int, new_producer_id: int | None = None) -> TxnRecord | None:
        """The record that aborts and fences, or None before `deadline_ms` or while a record is pending."""
        deadline_ms = self.deadline_ms
        if deadline_ms is None or deadline_ms > now_ms or self.pending is not None:
            return None
        return self._fence(now_ms, new_producer_id)

    def is_expired(self, *, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id has been idle for its expiration time and may be forgotten."""
        idle = self.pending is None and self.record.state in ENDED
        return idle and self.record.updated_ms + expiration_ms <= now_ms

    # -- small parts ------------------------------------------------------------------------------

    def _check_producer(self, producer_id: int, producer_epoch: int) -> None:
        if producer_id != self.record.producer_id:
            raise RequestError(ErrorCode.invalid_producer_id_mapping)
        if producer_epoch != self.record.producer_epoch:
            raise RequestError(ErrorCode.producer_fenced)

    def _refuse_while_pending(self) -> None:
        if self.pending is not None:
            raise RequestError(ErrorCode.concurrent_transactions)


def _given(new_producer_id: int | None) -> int:
    return violated("a new producer id is needed") if new_producer_id is None else new_producer_id
