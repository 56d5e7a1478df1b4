"""Which entries a commit round takes: metadata first (S16), each kind in its order; cuts for checkpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.model import METADATA_TOPIC_ID, InvariantViolated, StorageError
from chronik.storage import wal_queue
from chronik.storage.wal_format import ENTRY_HEADER_BYTES, EntryHeader, WalEntryKind, decode_header
from chronik.storage.wal_queue import Round, WalQueue

DATA = bytes(15) + b"\x4d"
METADATA = METADATA_TOPIC_ID.bytes
ROUND_BYTES = 1000
ENTRIES_MAX = 8
FIRST = 7
"""The first sequence number, as recovery found it."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["data", "relaxed data"]), st.integers(0, 2 * ROUND_BYTES)),
        st.tuples(st.sampled_from(["metadata", "take", "cut", "sync", "clear"]), st.just(0)),
    ),
    max_size=60,
)


class Sink:
    def committed(self, token: int) -> None: ...

    def rejected(self, token: int, error: StorageError) -> None: ...


class Model:
    """Adds numbered entries, takes rounds, and looks at each."""

    def __init__(self, entries_max: int = 10_000) -> None:
        self.woken = 0
        self.queue = WalQueue(next_sequence=FIRST, next_round=3, entries_max=entries_max, wake=self._wake)
        self.added = {DATA: 0, METADATA: 0}
        self.written: list[EntryHeader] = []
        self.lost: set[tuple[bytes, int]] = set()
        self.is_synced = True
        """Whether everything that was taken is synced."""
        self.is_strict = False
        """Whether the round that was taken last is synced, unless it fails."""
        self.cuts: list[tuple[int, int, int]] = []
        """For each cut: its sequence number, data entries added before it was asked for, and metadata
        entries added before it was found."""

    def _wake(self) -> None:
        self.woken += 1
        self.queue.is_awake = True

    def add(self, topic_id: bytes, size: int = 0, sync_within: float = 0.0) -> None:
        number = self.added[topic_id]
        self.added[topic_id] = number + 1
        self.queue.add(WalEntryKind.APPEND, topic_id, 0, number, bytes(size), Sink(), number, sync_within)

    def cut(self) -> None:
        data = self.added[DATA]
        self.queue.cut(lambda sequence: self.cuts.append((sequence, data, self.added[METADATA])))

    def clear(self) -> None:
        gone = self.queue.clear()
        self.is_synced = self.is_strict = False
        self.lost |= {(header.topic_id, header.offset) for header in headers(gone)}
        assert not self.queue.count
        assert not self.queue.waiting()

    def sync(self) -> None:
        self.queue.begin_number()
        self.is_synced = True

    def take(self) -> None:
        """What was added since the last one was taken came while that was under way."""
        self.is_synced = self.is_synced or self.is_strict
        self._take()

    def _take(self) -> None:
        waiting = [header.offset for header in headers(self.queue.waiting()) if header.topic_id == METADATA]
        taken = self.queue.take()
        if taken is None:
            assert not waiting
            return
        found = headers(taken.entries)
        assert [header.offset for header in found if header.topic_id == METADATA] == waiting
        assert [header.topic_id for header in found[: len(waiting)]] == [METADATA] * len(waiting)
        assert {header.round for header in found} == {taken.number}
        assert [entry.sequence for entry in taken.entries] == [header.sequence for header in found]
        self._check_size(taken, len(waiting))
        last = self.written[-1].round if self.written else -1
        assert taken.number > last if self.is_synced else taken.number == last
        self.is_synced = False
        self.written += found
        self.is_strict = not taken.sync_within

    def _check_size(self, taken: Round, metadata: int) -> None:
        sizes = [len(entry.payload) + ENTRY_HEADER_BYTES for entry in taken.entries]
        assert taken.size_bytes == sum(sizes)
        data = sizes[metadata:]
        assert len(data) <= 1 or sum(data) <= wal_queue.ROUND_BYTES_MAX

    def check_full(self, entries_max: int) -> None:
        """It is full at once by entries, within a round by bytes, and only while there is a reason."""
        sizes = [
            len(entry.payload) + ENTRY_HEADER_BYTES
            for entry, header in zip(self.queue.waiting(), headers(self.queue.waiting()), strict=True)
            if header.topic_id != METADATA
        ]
        if self.queue.full:
            assert len(sizes) >= entries_max or sum(sizes) >= wal_queue.QUEUE_BYTES_MAX
        else:
            assert len(sizes) < entries_max
            assert sum(sizes) < wal_queue.QUEUE_BYTES_MAX + wal_queue.ROUND_BYTES_MAX

    def check(self) -> None:
        sequences = [header.sequence for header in self.written]
        assert sequences == sorted(set(sequences))
        assert not sequences or sequences[0] >= FIRST
        for topic_id, count in self.added.items():
            numbers = [header.offset for header in self.written if header.topic_id == topic_id]
            assert numbers == [number for number in range(count) if (topic_id, number) not in self.lost]
        for sequence, data, metadata in self.cuts:
            for header in self.written:
                is_before = header.offset < (metadata if header.topic_id == METADATA else data)
                assert (header.sequence < sequence) is is_before


def headers(entries: list[wal_queue.Pending]) -> list[EntryHeader]:
    found = [decode_header(entry.header) for entry in entries]
    return [header for header in found if header is not None]


@given(STEPS)
def test_rounds_are_in_order_and_cuts_divide_them(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wal_queue, "ROUND_BYTES_MAX", ROUND_BYTES)
        patched.setattr(wal_queue, "SHARED_BYTES_MAX", ROUND_BYTES // 4)
        patched.setattr(wal_queue, "QUEUE_BYTES_MAX", 3 * ROUND_BYTES)
        model = Model(ENTRIES_MAX)
        for what, size in steps:
            match what:
                case "data":
                    model.add(DATA, size)
                case "metadata":
                    model.add(METADATA)
                case "relaxed data":
                    model.add(DATA, size, 1.0)
                case "take":
                    model.take()
                case "cut":
                    model.cut()
                case "sync" if model.written:
                    model.sync()
                case "clear" if model.written:  # a round failed: so one was taken
                    model.clear()
            model.check_full(ENTRIES_MAX)
        while model.queue.count:
            model.take()
            model.check_full(ENTRIES_MAX)
        model.check()
        assert (model.queue.data_count, model.queue.data_bytes) == (0, 0)


def test_metadata_does_not_wait_for_the_data_before_it() -> None:
    """However much of it there is: what is appended last is in the next round, by itself."""
    model = Model()
    for _ in range(64):
        model.add(DATA, 1 << 20)
    model.add(METADATA)
    model.take()
    assert [header.topic_id for header in model.written] == [METADATA]
    model.add(METADATA)
    model.take()
    assert [header.topic_id for header in model.written[1:]] == [METADATA, DATA], "data waits for metadata"
    model.add(METADATA)
    model.take()
    assert [header.topic_id for header in model.written[3:]] == [METADATA]


def test_metadata_shares_a_round_with_little_data() -> None:
    """A sync of its own would cost more than the data that it would wait for."""
    model = Model()
    model.add(DATA, 1000)
    model.add(METADATA)
    model.take()
    assert [header.topic_id for header in model.written] == [METADATA, DATA]


def test_somebody_is_woken_for_the_first_entry_of_either_kind() -> None:
    for kind in (DATA, METADATA):
        model = Model()
        model.add(kind)
        model.add(kind)
        assert model.woken == 1
        model.take()
        model.queue.is_awake = False
        model.add(kind)
        assert model.woken == 2


def test_more_metadata_than_there_are_numbers_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_queue, "SEQUENCE_STEP", 4)
    model = Model()
    model.add(DATA)
    for _ in range(4):
        model.add(METADATA)
    with pytest.raises(InvariantViolated, match="more metadata entries"):
        model.take()
