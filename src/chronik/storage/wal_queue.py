"""What waits for the WAL: which entries the next commit round takes, and which numbers they get. Pure.

Data entries are numbered when they are added, and gather in planned rounds of at most `ROUND_BYTES_MAX`.
Metadata entries gather apart. They are in whichever round is taken next, however much data waits (S16): by
themselves if that round has much data, else in front of it. They get their numbers then: each data entry
leaves `SEQUENCE_STEP - 1` numbers free before its own, and each planned round one round number.

A round is relaxed if all of its entries may be reported before they are synced. Relaxed rounds share their
number with the round before them that is not synced yet, and with the one behind them: a higher number says
that everything with a lower one was synced before (`wal_format`). `GROUP_BYTES_MAX` bounds what shares one.

Invariants: within the metadata, and within the data, entries are written in the order in which they were
added. Sequence numbers grow from entry to entry. Round numbers never go back; they grow behind a round that
is not relaxed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain
from math import inf
from typing import Final, NamedTuple, Protocol

import msgspec

from chronik.model import METADATA_TOPIC_ID, StorageError, invariant
from chronik.records.batch import Buffer
from chronik.storage.wal_format import ENTRY_HEADER_BYTES, encode_header, with_position

QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
ROUND_BYTES_MAX: Final = 1024 * 1024
"""Most data in a round. Metadata waits for the round under way, so rounds must be short; larger ones bring no
more throughput (docs/decisions/0041)."""
SHARED_BYTES_MAX: Final = 64 * 1024
"""Most data that metadata shares a round with. With more, it would wait for that data to be written."""
ROUND_STEP: Final = 2
"""Distance between the numbers of two planned rounds, so that one of metadata alone fits in between."""
SEQUENCE_STEP: Final = 1 << 16
"""Distance between the sequence numbers of two data entries. More metadata entries than fit in between never
wait for one round: Raft waits for its writes."""
RESTART_GAP: Final = 1 << 32
"""Numbers that a start leaves out: more than the one round that was under way before it can have had. That
round is cut off; should the disk lose the cut, its entries must not look newer than those written since."""
GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
"""Data in relaxed rounds of one number, after which a round is synced like any other. Recovery takes an entry
that it cannot read for one that was never synced, and ends there, where no higher number follows."""
RENUMBERED_MAX: Final = 256
"""Most entries that get another number at once: the loop stands still meanwhile."""
_METADATA: Final = METADATA_TOPIC_ID.bytes


class WalSink(Protocol):
    """Receives the outcome of an entry; usually a partition's log."""

    def committed(self, token: int) -> None:
        """The entry appended with this token is on disk, with all of the sink's entries before it."""

    def rejected(self, token: int, error: StorageError) -> None:
        """The entry is not on disk and never will be."""


class RelaxedSink(WalSink, Protocol):
    """Sink of an entry that was added with `sync_within`."""

    def written(self, token: int) -> None:
        """Like `committed`, but not synced yet: it survives the process, not a power loss."""

    def synced(self, token: int) -> None:
        """What was `written` up to this token is on disk now."""

    def doubt(self) -> None:
        """What was `written` may be lost: its file could not be synced."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether that is so still."""
        ...

    def write_again(self) -> None:
        """Append once more what is in doubt, unless that is under way."""


class Pending(NamedTuple):
    header: bytes
    payload: Buffer
    sink: WalSink
    token: int
    sequence: int


class Round(msgspec.Struct):
    """A commit round that is planned, or was taken."""

    number: int
    entries: list[Pending] = msgspec.field(default_factory=list)
    size_bytes: int = 0
    sync_within: float = inf
    """Seconds within which it has to be synced; 0: before anybody hears of it."""
    cuts: list[Callable[[int], None]] = msgspec.field(default_factory=list)
    """Whom to tell the first sequence number behind this round when it is taken."""


class WalQueue:
    __slots__ = (
        "_entries_max",
        "_former",
        "_group_bytes",
        "_last_round",
        "_last_sequence",
        "_metadata",
        "_metadata_bytes",
        "_next_round",
        "_next_sequence",
        "_open",
        "_planned",
        "_room_waiters",
        "_wake",
        "_was_alone",
        "count",
        "data_bytes",
        "data_count",
        "full",
        "is_awake",
        "is_waited_for",
        "times_waited_for",
    )

    def __init__(
        self, *, next_sequence: int, next_round: int, entries_max: int, wake: Callable[[], None]
    ) -> None:
        """`wake` is called when an entry is added and nobody is going to take it: unless `is_awake`. With
        `entries_max` data entries the queue is full."""
        self._wake = wake
        self.is_awake = False
        """Whether a round is under way or about to start. Whoever takes rounds sets it."""
        self._last_sequence = next_sequence - 1
        """Sequence number of the last entry that was taken. Planned entries are at least `SEQUENCE_STEP`
        higher."""
        self._next_sequence = self._last_sequence + SEQUENCE_STEP
        self._last_round = next_round - 1
        """Number of the round that was taken last."""
        self._next_round = self._last_round + ROUND_STEP
        self._planned: deque[Round] = deque()
        self._open: Round | None = None
        """The last planned round, while it may get more entries."""
        self._former: Round | None = None
        """The round that was planned last, taken or not; None if everything before the next one is synced."""
        self._group_bytes = 0
        """Data in rounds that share the number of `_former`, without those of `_former` itself."""
        self._was_alone = False
        """Whether the round that was taken last was of metadata alone."""
        self._metadata: list[Pending] = []
        self._metadata_bytes = 0
        self.count = 0
        """Entries that wait, metadata included."""
        self.data_count = 0
        self.data_bytes = 0
        """Number and size of the data entries that wait. Senders are slowed down by them."""
        self._entries_max = entries_max
        self.full = False
        """Whether that is so many that senders should not be read from until `when_room` calls."""
        self._room_waiters: list[Callable[[], None]] = []
        self.is_waited_for = False
        self.times_waited_for = 0

    @property
    def next_sequence(self) -> int:
        """Every entry that is taken from now on has this number or a higher one."""
        return self._last_sequence + 1

    def waiting(self) -> list[Pending]:
        """All entries in the order in which they will be written, as far as that is known."""
        return [*self._metadata, *chain.from_iterable(planned.entries for planned in self._planned)]

    def add(
        self,
        kind: int,
        topic_id: bytes,
        partition: int,
        offset: int,
        payload: Buffer,
        sink: WalSink,
        token: int,
        sync_within: float = 0.0,
    ) -> None:
        """Queue an entry; its sink hears of it once it is on disk.

        With `sync_within`, which only a `RelaxedSink` may ask for, it hears of it once it is in the file; the
        sync has to follow within so many seconds.
        """
        size = len(payload) + ENTRY_HEADER_BYTES
        if topic_id == _METADATA:
            header = encode_header(kind, 0, 0, topic_id, partition, offset, payload)
            self._metadata.append(Pending(header, payload, sink, token, 0))
            self._metadata_bytes += size
            self.count += 1
            if not self.is_awake:
                self._wake()
            return
        self.data_bytes += size
        planned = self._open
        if planned is None or planned.size_bytes + size > ROUND_BYTES_MAX:
            planned = self._plan()
            self.full = self.full or self.data_bytes >= QUEUE_BYTES_MAX  # often enough: once for each round
        sequence = self._next_sequence
        self._next_sequence = sequence + SEQUENCE_STEP
        # Encode the header here: at the start of the round all entries would wait for it.
        header = encode_header(kind, sequence, planned.number, topic_id, partition, offset, payload)
        planned.entries.append(tuple.__new__(Pending, (header, payload, sink, token, sequence)))
        planned.size_bytes += size
        if sync_within < planned.sync_within:
            planned.sync_within = sync_within
        self.data_count += 1
        self.count += 1
        if self.data_count >= self._entries_max:
            self.full = True
        if not self.is_awake:
            self._wake()

    def _plan(self) -> Round:
        former = self._former
        if former is not None and 0.0 < former.sync_within < inf:
            planned = Round(former.number)
            self._group_bytes += former.size_bytes
            if self._group_bytes >= GROUP_BYTES_MAX:
                planned.sync_within = 0.0
        else:
            planned = Round(self._next_round)
            self._next_round += ROUND_STEP
            self._group_bytes = 0
        self._open = self._former = planned
        self._planned.append(planned)
        return planned

    def begin_number(self) -> None:
        """Everything that was taken is synced before the next round is: that one need not share its number.

        Planned rounds have their numbers in all of their headers. They get others if that is little work.
        """
        planned = self._planned
        if not planned:
            self._former = None
        elif planned[0].number == self._last_round and self.data_count <= RENUMBERED_MAX:
            for each in planned:
                each.number += ROUND_STEP
                each.entries = [
                    entry._replace(header=with_position(entry.header, entry.sequence, each.number))
                    for entry in each.entries
                ]
            self._next_round += ROUND_STEP
            last = planned[-1]
            self._group_bytes = sum(each.size_bytes for each in planned if each.number == last.number)
            self._group_bytes -= last.size_bytes

    @property
    def is_next_strict(self) -> bool:
        """Whether the next round, as far as it is known, has to be synced before anybody hears of it."""
        return bool(self._metadata) or not self._planned or self._planned[0].sync_within == 0.0

    @property
    def next_bytes(self) -> int:
        """Size of the next round at most, as far as it is known."""
        return self._metadata_bytes + (self._planned[0].size_bytes if self._planned else 0)

    def cut(self, found: Callable[[int], None]) -> None:
        """Divide what is written into before and after, for a checkpoint.

        Calls `found` with a sequence number: now if nothing waits, else when the round with the last data
        entry added so far is taken. At that moment these have lower numbers, and nothing else has: the data
        entries added before `cut`, and the metadata entries added before `found` is called.
        """
        if not self.count:
            found(self.next_sequence)
            return
        (self._planned[-1] if self._planned else self._plan()).cuts.append(found)
        self._open = None

    def take(self) -> Round | None:
        """The next round: all metadata that waits, alone or before data. None if nothing waits."""
        if not self.count:
            return None
        if self._metadata and self._is_too_much_data():
            # The metadata goes alone.
            taken = Round(max(self._planned[0].number - 1, self._last_round))
            self._was_alone = True
        else:
            self._was_alone = False
            if not self._planned:
                self._plan()
            taken = self._planned.popleft()
            if taken is self._open:
                self._open = None
            self.data_count -= len(taken.entries)
            self.data_bytes -= taken.size_bytes
            self.full = self.data_count >= self._entries_max or self.data_bytes >= QUEUE_BYTES_MAX
        if self._metadata:
            self._put_in_front(taken)
        if taken is self._former:  # only what the next number follows from: its entries are not kept
            self._former = Round(taken.number, size_bytes=taken.size_bytes, sync_within=taken.sync_within)
        self._last_round = taken.number
        self.count -= len(taken.entries)
        self._last_sequence = taken.entries[-1].sequence
        if not self._planned:
            self._next_sequence = self._last_sequence + SEQUENCE_STEP
        elif not taken.sync_within and self._planned[0].number == taken.number:
            self.begin_number()  # metadata joined a relaxed round: it is synced now, as all before it
        for found in taken.cuts:
            found(self.next_sequence)
        return taken

    def _is_too_much_data(self) -> bool:
        """Whether metadata should not wait for the data of the next round. Never twice in a row: data must
        not wait for a stream of metadata."""
        if not self._planned:
            return False
        return self._planned[0].size_bytes > SHARED_BYTES_MAX and not self._was_alone

    def _put_in_front(self, taken: Round) -> None:
        end = self.next_sequence + len(self._metadata)
        following = taken.entries or (self._planned[0].entries if self._planned else ())
        is_room = not following or end <= following[0].sequence
        invariant(is_room, "more metadata entries wait than there are numbers left before the data")
        taken.entries[:0] = [
            entry._replace(header=with_position(entry.header, sequence, taken.number), sequence=sequence)
            for sequence, entry in enumerate(self._metadata, self.next_sequence)
        ]
        taken.size_bytes += self._metadata_bytes
        taken.sync_within = 0.0
        self._metadata, self._metadata_bytes = [], 0

    def clear(self) -> list[Pending]:
        """A round failed: remove and return everything that waits; nobody who waits for a cut is told.

        What was taken last may not be synced, so what is added next shares its number.
        """
        gone = self.waiting()
        self._planned.clear()
        self._open = None
        self._former = Round(self._last_round, sync_within=1.0)
        self._metadata, self._metadata_bytes = [], 0
        self.count = self.data_count = self.data_bytes = 0
        self.full = False
        return gone

    # --- senders that wait -------------------------------------------------------------------------

    def when_room(self, callback: Callable[[], None]) -> None:
        self.times_waited_for += 1
        self.is_waited_for = True
        self._room_waiters.append(callback)

    def tell_room(self) -> None:
        """Call those that wait, unless it is full still."""
        if not self.full:
            self.is_waited_for = False
            waiters, self._room_waiters = self._room_waiters, []
            for callback in waiters:
                callback()
