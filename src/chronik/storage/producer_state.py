"""What one partition remembers of its producers: idempotence and open transactions.

The log tells this object about every batch that carries a producer id, in offset order, and asks it
before a client's append whether the batch may go in. Only facts of the batch header are used (and, for
a transaction marker, its two fields); no record is ever looked at.

    check() -> None | BatchSpan     leader only, before the offset is assigned; raises RequestError
    note_batch()                    every replica, and replay at start, after the offset is known
    advance_high_watermark()        every replica, when the watermark moved
    truncate_to()                   follower, before it copies a new leader's log

Invariants:
- `check` and the `append` that follows it run in one turn of the loop: nothing may slip in between.
- The same batches in the same order give the same state, on every replica, but for producers that one has
  forgotten already: for their age, or for want of room.
- `last_stable_offset` never passes the first offset of a transaction that is open or whose marker is
  not yet below the high watermark.
- Entries are immutable, so `truncate_to` undoes appends above the watermark exactly, without a replay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Set
from typing import Final, NamedTuple

import msgspec

from chronik.client_state import ClientState, Held
from chronik.model import NO_EPOCH, NO_OFFSET, ErrorCode, RequestError, invariant, refuse_newer
from chronik.records.batch import BatchHeader, Buffer
from chronik.records.reader import read_marker
from chronik.records.timestamps import is_believable

__all__ = ["NO_PRODUCER_ID", "NO_SEQUENCE", "AbortedTxn", "BatchSpan", "ProducerEntry", "ProducerStates"]

NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MAX: Final = 2**31 - 1
BATCHES_KEPT: Final = 5
"""Kafka clients keep at most five requests in flight, so a retry is always among these."""

PRODUCERS_MAX: Final = 10_000
"""Producers that one partition remembers: anybody can invent ids. Beyond it those go that wrote nothing for
longest. To its partition such a producer is new (KIP-360)."""

PRODUCERS_ALWAYS: Final = 20
"""Producers that a partition remembers even when all partitions together remember too many: those who write
to one partition must not cost others their idempotence."""

PRODUCER_BYTES: Final = 600
"""What a producer's entry takes, about; more with five batches, less with one."""


class BatchSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One accepted batch: a retry with the same sequences is answered with these offsets."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The latest state of one producer id. Immutable: an append makes a new one."""

    producer_id: int
    producer_epoch: int
    batches: tuple[BatchSpan, ...]
    """At most BATCHES_KEPT of the current epoch, oldest first."""
    txn_first_offset: int
    """First offset of the open transaction, NO_OFFSET when none is open."""
    coordinator_epoch: int
    last_timestamp_ms: int

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class AbortedTxn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range that a read_committed consumer skips. `last_offset` is the offset of the abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """The last stable offset right after this abort: no earlier transaction begins below it any more."""


class _Ended(NamedTuple):
    first_offset: int
    marker_offset: int


class _Undo(NamedTuple):
    offset: int
    producer_id: int
    previous: ProducerEntry | None


class _ProducerSnapshot(msgspec.Struct, frozen=True, array_like=True):
    version: int
    next_offset: int
    entries: list[ProducerEntry]
    ended: list[_Ended]
    aborted: list[AbortedTxn]
    undo: list[_Undo] = []
    """How to take back recent batches. Without it a restarted replica could not cut off what the new leader
    does not have."""
    undo_start: int = -1


_SNAPSHOT_VERSION: Final = 1


def add_to_sequence(sequence: int, increment: int) -> int:
    """Sequence numbers wrap from 2^31-1 to 0."""
    return (sequence + increment) & SEQUENCE_MAX


class ProducerStates:
    """The producers of one partition. See the module's docstring for the order of calls."""

    __slots__ = (
        "_aborted",
        "_ended",
        "_entries",
        "_first_unstable",
        "_held",
        "_open",
        "_undo",
        "_undo_start",
        "next_offset",
    )

    def __init__(self, held: Held | None = None) -> None:
        """`held` counts the entries among those of all partitions."""
        self._held = held or ClientState().producer_ids.hold()
        self.next_offset = 0
        """Every batch below this offset has been seen."""
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        """Producer id to first offset, for open transactions only."""
        self._ended: list[_Ended] = []
        """Transactions whose marker is not yet below the high watermark, by marker offset."""
        self._aborted: list[AbortedTxn] = []
        """Sorted by last_offset."""
        self._undo: deque[_Undo] = deque()
        self._undo_start = 0
        """Appends at or above this offset can be undone."""
        self._first_unstable: int | None = None

    # -- before a client's append -----------------------------------------------------------------

    def check(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
        is_transactional: bool,
    ) -> BatchSpan | None:
        """Raise unless this batch may be appended. A BatchSpan means that it already was: answer with its
        offsets."""
        entry = self._entries.get(producer_id)
        if entry is None:
            # Unknown or expired: any sequence may begin (KIP-360).
            return None
        if producer_epoch < entry.producer_epoch:
            raise RequestError(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id} uses epoch {producer_epoch}, now at {entry.producer_epoch}",
            )
        if producer_epoch == entry.producer_epoch:
            last_sequence = add_to_sequence(base_sequence, record_count - 1)
            for span in entry.batches:
                if span.base_sequence == base_sequence and span.last_sequence == last_sequence:
                    return span
            expected = add_to_sequence(entry.last_sequence, 1)
        else:
            expected = 0
        if base_sequence != expected:
            raise RequestError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {producer_id} epoch {producer_epoch}: got {base_sequence}, expected {expected}",
            )
        if entry.txn_first_offset != NO_OFFSET and not is_transactional:
            raise RequestError(
                ErrorCode.invalid_txn_state,
                f"producer {producer_id} has an open transaction: not a transactional batch",
            )
        return None

    def check_marker(
        self, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, raises_epoch: bool
    ) -> None:
        """May this transaction marker be appended? A repeated marker may, as long as it changes nothing.

        `raises_epoch`: its transaction has the epoch before (KIP-890). If a transaction of its own epoch
        is open, that is the next one, and the marker a late repetition: it must not end it (KIP-1228).
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        is_late = raises_epoch and self.has_open_transaction(producer_id, producer_epoch)
        if producer_epoch < entry.producer_epoch or is_late:
            raise RequestError(
                ErrorCode.invalid_producer_epoch,
                f"marker of producer {producer_id} has epoch {producer_epoch}, now at {entry.producer_epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise RequestError(
                ErrorCode.transaction_coordinator_fenced,
                f"marker of producer {producer_id} has coordinator epoch {coordinator_epoch}, "
                f"now at {entry.coordinator_epoch}",
            )

    # -- after the offset is known ----------------------------------------------------------------

    def note_batch(self, header: BatchHeader, batch: Buffer, now_ms: int) -> None:
        """Take note of a batch with a producer id, data or marker, that is in the log now."""
        # A producer without timestamps must not count as idle since 1970: its sequence would be forgotten.
        timestamp_ms = header.max_timestamp if is_believable(header.max_timestamp, now_ms) else now_ms
        if not header.is_control:
            self.append(
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                base_offset=header.base_offset,
                last_offset=header.last_offset,
                is_transactional=header.is_transactional,
                timestamp_ms=timestamp_ms,
            )
            return
        marker = read_marker(batch)
        if marker is not None:
            self.append_marker(
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                offset=header.base_offset,
                is_commit=marker.is_commit,
                timestamp_ms=timestamp_ms,
            )

    def append(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        base_offset: int,
        last_offset: int,
        is_transactional: bool,
        timestamp_ms: int,
    ) -> None:
        """Take note of a data batch, in the log at `base_offset`."""
        invariant(base_offset >= self.next_offset, "producer state saw a batch out of order")
        previous = self._entries.get(producer_id)
        span = BatchSpan(
            base_sequence,
            add_to_sequence(base_sequence, last_offset - base_offset),
            base_offset,
            last_offset,
            timestamp_ms,
        )
        batches: tuple[BatchSpan, ...] = (span,)
        first_offset, coordinator_epoch = NO_OFFSET, NO_EPOCH
        if previous is not None:
            first_offset, coordinator_epoch = previous.txn_first_offset, previous.coordinator_epoch
            if previous.producer_epoch == producer_epoch:
                batches = (*previous.batches[1 - BATCHES_KEPT :], span)
        if is_transactional and first_offset == NO_OFFSET:
            first_offset = base_offset
            self._open[producer_id] = base_offset
            if self._first_unstable is None:
                self._first_unstable = base_offset
        entry = ProducerEntry(
            producer_id, producer_epoch, batches, first_offset, coordinator_epoch, timestamp_ms
        )
        self._replace(base_offset, last_offset, previous, entry)

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        offset: int,
        is_commit: bool,
        timestamp_ms: int,
    ) -> None:
        """Take note of a transaction marker, in the log at `offset`: its transaction is over."""
        invariant(offset >= self.next_offset, "producer state saw a marker out of order")
        previous = self._entries.get(producer_id)
        batches: tuple[BatchSpan, ...] = ()
        if previous is not None:
            if previous.producer_epoch == producer_epoch:
                batches = previous.batches
            if previous.txn_first_offset != NO_OFFSET:
                self._end_transaction(producer_id, previous.txn_first_offset, offset, is_commit=is_commit)
        entry = ProducerEntry(
            producer_id, producer_epoch, batches, NO_OFFSET, coordinator_epoch, timestamp_ms
        )
        self._replace(offset, offset, previous, entry)

    def skip_to(self, next_offset: int) -> None:
        """All below `next_offset` has been seen: batches without a producer id need no call of their own."""
        self.next_offset = max(self.next_offset, next_offset)

    def _end_transaction(self, producer_id: int, first_offset: int, offset: int, *, is_commit: bool) -> None:
        del self._open[producer_id]
        if not is_commit:
            stable = min(self._open.values(), default=offset + 1)
            self._aborted.append(AbortedTxn(producer_id, first_offset, offset, stable))
        self._ended.append(_Ended(first_offset, offset))

    def _replace(
        self, offset: int, last_offset: int, previous: ProducerEntry | None, entry: ProducerEntry
    ) -> None:
        self._entries.pop(entry.producer_id, None)  # in the order of their last writes
        self._entries[entry.producer_id] = entry
        self._undo.append(_Undo(offset, entry.producer_id, previous))
        self.next_offset = last_offset + 1
        if previous is None:
            self._make_room(offset)

    def _make_room(self, offset: int) -> None:
        """One more producer is remembered, another one perhaps forgotten."""
        count, share = len(self._entries), self._held.share
        if count > PRODUCERS_MAX:
            self._forget_oldest(offset)
        elif count > PRODUCERS_ALWAYS and not share.has_room(PRODUCER_BYTES):
            share.note_refusal()
            self._forget_oldest(offset)
        self._count()

    def _count(self) -> None:
        self._held.add(PRODUCER_BYTES * len(self._entries) - self._held.bytes)

    def _forget_oldest(self, offset: int) -> None:
        """Part of the append at `offset`: truncation brings it back.

        Replicas may forget different ones, as they do when producers expire by the clock.
        """
        newest = next(reversed(self._entries), None)  # the one that room is made for
        oldest = next((key for key in self._entries if key not in self._open and key != newest), None)
        if oldest is not None:
            self._undo.append(_Undo(offset, oldest, self._entries.pop(oldest)))

    # -- stability --------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is open or ended above the watermark; None: all stable."""
        return self._first_unstable

    def last_stable_offset(self, high_watermark: int) -> int:
        first = self._first_unstable
        return high_watermark if first is None or first > high_watermark else first

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Offsets below `high_watermark` will never be truncated: forget how to undo them."""
        undo = self._undo
        while undo and undo[0].offset < high_watermark:
            self._undo_start = undo.popleft().offset + 1
        ended = self._ended
        if ended and ended[0].marker_offset < high_watermark:
            self._ended = [txn for txn in ended if txn.marker_offset >= high_watermark]
            self._find_first_unstable()

    def aborted_between(self, fetch_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """Aborted transactions that touch [fetch_offset, upper_offset), for a read_committed fetch."""
        aborted = self._aborted
        found = []
        for index in range(bisect_left(aborted, fetch_offset, key=lambda txn: txn.last_offset), len(aborted)):
            txn = aborted[index]
            if txn.first_offset < upper_offset:
                found.append(txn)
            if txn.last_stable_offset >= upper_offset:
                break
        return found

    def _find_first_unstable(self) -> None:
        first = min(self._open.values(), default=None)
        for txn in self._ended:
            if first is None or txn.first_offset < first:
                first = txn.first_offset
        self._first_unstable = first

    # -- forgetting -------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Undo every append at or above `offset`.

        False: history does not reach back so far and nothing was done.
        """
        if offset < self._undo_start:
            return False
        if offset >= self.next_offset:
            return True
        undo = self._undo
        while undo and undo[-1].offset >= offset:
            _, producer_id, previous = undo.pop()
            if previous is None:
                self._entries.pop(producer_id, None)
            else:
                self._entries[producer_id] = previous
            if previous is None or previous.txn_first_offset == NO_OFFSET:
                self._open.pop(producer_id, None)
            else:
                self._open[producer_id] = previous.txn_first_offset
        while self._ended and self._ended[-1].marker_offset >= offset:
            self._ended.pop()
        while self._aborted and self._aborted[-1].last_offset >= offset:
            self._aborted.pop()
        self.next_offset = offset
        self._find_first_unstable()
        self._count()
        return True

    def forget_from(self, offset: int) -> None:
        """Cut below the watermark, as an unclean election makes replicas do: keep what is known to be left.

        A producer's state before the removed batches is unknown: keep the batches that are left, and forget
        the producer if none is.
        """
        for entry in list(self._entries.values()):
            kept = tuple(span for span in entry.batches if span.last_offset < offset)
            if kept == entry.batches and entry.txn_first_offset < offset:
                continue
            if not kept:
                del self._entries[entry.producer_id]
                self._open.pop(entry.producer_id, None)
                continue
            first = entry.txn_first_offset if entry.txn_first_offset < offset else NO_OFFSET
            if first == NO_OFFSET:
                self._open.pop(entry.producer_id, None)
            self._entries[entry.producer_id] = msgspec.structs.replace(
                entry, batches=kept, txn_first_offset=first
            )
        self._undo.clear()
        self._undo_start = offset
        self._ended = [txn for txn in self._ended if txn.marker_offset < offset]
        self._aborted = [txn for txn in self._aborted if txn.last_offset < offset]
        self.next_offset = min(self.next_offset, offset)
        self._find_first_unstable()
        self._count()

    def advance_log_start(self, log_start_offset: int) -> None:
        """The log's head was deleted: aborted ranges below it can no longer be read.

        Producers stay until they expire (KIP-360), so that retention does not break idempotence.
        """
        gone = bisect_left(self._aborted, log_start_offset, key=lambda txn: txn.last_offset)
        if gone:
            del self._aborted[:gone]

    def forget_aborted(self, marker_offsets: Set[int]) -> None:
        """Compaction has removed every record of these transactions: there is nothing to skip any more."""
        self._aborted = [txn for txn in self._aborted if txn.last_offset not in marker_offsets]

    def expire(self, *, now_ms: int, expiration_ms: int) -> int:
        """Forget producers without an open transaction that wrote nothing for `expiration_ms`. How many?"""
        limit_ms = now_ms - expiration_ms
        idle = [
            entry.producer_id
            for entry in self._entries.values()
            if entry.txn_first_offset == NO_OFFSET and entry.last_timestamp_ms <= limit_ms
        ]
        for producer_id in idle:
            del self._entries[producer_id]
        self._count()
        return len(idle)

    # -- looking ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of this epoch is open. One of another epoch is another transaction."""
        entry = self._entries.get(producer_id)
        return entry is not None and producer_id in self._open and entry.producer_epoch == producer_epoch

    # -- snapshots --------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything below `next_offset`, for a file beside the log."""
        return msgspec.msgpack.encode(
            _ProducerSnapshot(
                _SNAPSHOT_VERSION,
                self.next_offset,
                list(self._entries.values()),
                self._ended,
                self._aborted,
                list(self._undo),
                self._undo_start,
            )
        )

    @classmethod
    def restore(cls, data: bytes, held: Held | None = None) -> ProducerStates:
        """What `snapshot` wrote; ValueError for bytes that are none. Replay goes on at `next_offset`."""
        snapshot = msgspec.msgpack.decode(data, type=_ProducerSnapshot)
        refuse_newer("a partition's producer state", snapshot.version, _SNAPSHOT_VERSION)
        states = cls(held)
        states.next_offset = snapshot.next_offset
        states._undo_start = snapshot.undo_start if snapshot.undo_start >= 0 else snapshot.next_offset
        states._undo = deque(snapshot.undo)
        states._entries = {entry.producer_id: entry for entry in snapshot.entries}
        states._open = {
            entry.producer_id: entry.txn_first_offset
            for entry in snapshot.entries
            if entry.txn_first_offset != NO_OFFSET
        }
        states._ended = snapshot.ended
        states._aborted = snapshot.aborted
        states._find_first_unstable()
        states._count()
        return states
