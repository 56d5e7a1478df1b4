"""Producer state: each refusal by name, and random histories against a model that rescans its whole log."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chronik.client_state import Share
from chronik.model import ErrorCode, RequestError
from chronik.storage import producer_state
from chronik.storage.producer_state import (
    PRODUCER_BYTES,
    PRODUCERS_ALWAYS,
    SEQUENCE_MAX,
    BatchSpan,
    ProducerStates,
)


def put(
    states: ProducerStates,
    sequence: int,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    count: int = 1,
    transactional: bool = False,
) -> BatchSpan | None:
    """A client's append as the log does it: check, then take note. The span of a duplicate, else None."""
    duplicate = states.check(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
        is_transactional=transactional,
    )
    if duplicate is None:
        base_offset = states.next_offset
        states.append(
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            base_offset=base_offset,
            last_offset=base_offset + count - 1,
            is_transactional=transactional,
            timestamp_ms=1000 + base_offset,
        )
    return duplicate


def end(
    states: ProducerStates,
    *,
    commit: bool,
    producer_id: int = 7,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    raises_epoch: bool = False,
) -> None:
    states.check_marker(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        raises_epoch=raises_epoch,
    )
    states.append_marker(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        offset=states.next_offset,
        is_commit=commit,
        timestamp_ms=1000 + states.next_offset,
    )


def refused(code: ErrorCode, states: ProducerStates, sequence: int, **facts: int) -> None:
    with pytest.raises(RequestError) as caught:
        put(states, sequence, **facts)  # type: ignore[arg-type]
    assert caught.value.code is code


def test_invented_producer_ids_push_out_only_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 10)
    states = ProducerStates()
    put(states, 0, producer_id=1, transactional=True)
    put(states, 0, producer_id=2)
    put(states, 0, producer_id=3)
    for forged in range(100, 107):
        put(states, 0, producer_id=forged)
    put(states, 1, producer_id=2)  # used again: 3 has been quiet for longest now
    whole = states.snapshot()
    put(states, 0, producer_id=200)
    assert len(states) == 10
    assert [states.get(one) is not None for one in (1, 2, 3, 100)] == [True, True, False, True]
    assert states.truncate_to(10)  # a follower that cuts the last batch off knows the producer again
    assert ProducerStates.restore(states.snapshot()).get(3) == ProducerStates.restore(whole).get(3)
    assert len(states) == 10
    for forged in range(300, 400):
        put(states, 0, producer_id=forged)
    assert len(states) == 10
    assert states.has_open_transaction(1, 0)


def test_the_producer_that_room_is_made_for_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 3)
    states = ProducerStates()
    for producer_id in (1, 2, 3):
        put(states, 0, producer_id=producer_id, transactional=True)
    put(states, 0, producer_id=4)
    assert states.get(4) is not None  # else its retry would be written twice


def test_all_partitions_share_room_for_producers() -> None:
    """10,000 ids in each of many partitions are more than a node has memory for."""
    share = Share("producer_ids", 100 * PRODUCER_BYTES)
    mine, other = ProducerStates(share.hold()), ProducerStates(share.hold())
    for number in range(PRODUCERS_ALWAYS):
        put(mine, 0, producer_id=number)
    for number in range(1_000):
        put(other, 0, producer_id=number)
    assert len(other) == 100 - PRODUCERS_ALWAYS
    assert share.held_bytes == share.bytes_max
    assert share.refused == 1_000 - len(other)
    # A partition that few write to keeps all of them, whatever happens elsewhere.
    assert len(mine) == PRODUCERS_ALWAYS
    restored = ProducerStates.restore(other.snapshot(), share.hold())
    assert share.held_bytes == share.bytes_max + len(restored) * PRODUCER_BYTES
    restored.expire(now_ms=10**15, expiration_ms=1)
    assert share.held_bytes == share.bytes_max


def test_a_producer_forgotten_for_want_of_room_comes_back_with_a_truncation() -> None:
    share = Share("producer_ids", PRODUCERS_ALWAYS * PRODUCER_BYTES)
    states = ProducerStates(share.hold())
    for number in range(PRODUCERS_ALWAYS):
        put(states, 0, producer_id=number)
    before = states.next_offset
    put(states, 0, producer_id=99)
    assert states.get(0) is None
    states.truncate_to(before)
    assert states.get(0) is not None
    assert states.get(99) is None
    assert share.held_bytes == share.bytes_max


def test_a_late_repetition_of_a_marker_does_not_end_the_next_transaction() -> None:
    """The coordinator asked twice (KIP-1228). Where markers raise the epoch, what follows has the same."""
    states = ProducerStates()
    put(states, 0, epoch=4, transactional=True)
    end(states, commit=True, epoch=5, raises_epoch=True)
    end(states, commit=True, epoch=5, raises_epoch=True)  # nothing is open: it changes nothing
    put(states, 0, epoch=5, transactional=True)
    with pytest.raises(RequestError) as late:
        end(states, commit=True, epoch=5, raises_epoch=True)
    assert late.value.code is ErrorCode.invalid_producer_epoch
    assert states.has_open_transaction(7, 5)
    end(states, commit=False, epoch=6, raises_epoch=True)
    assert not states.has_open_transaction(7, 5)


def test_an_open_transaction_of_another_epoch_is_another_transaction() -> None:
    states = ProducerStates()
    put(states, 0, epoch=4, transactional=True)
    assert states.has_open_transaction(7, 4)
    assert not states.has_open_transaction(7, 5)


def test_a_retry_is_answered_with_the_first_offset() -> None:
    states = ProducerStates()
    for sequence in range(0, 60, 10):
        assert put(states, sequence, count=10) is None
    duplicate = put(states, 20, count=10)
    assert duplicate is not None
    assert (duplicate.base_offset, duplicate.last_offset, duplicate.timestamp_ms) == (20, 29, 1020)
    assert states.next_offset == 60


def test_a_batch_older_than_the_last_five_is_out_of_order() -> None:
    states = ProducerStates()
    for sequence in range(6):
        put(states, sequence)
    refused(ErrorCode.out_of_order_sequence_number, states, 0)
    assert put(states, 1) is not None


def test_a_gap_is_out_of_order() -> None:
    states = ProducerStates()
    put(states, 0)
    refused(ErrorCode.out_of_order_sequence_number, states, 2)
    put(states, 1)


def test_same_base_with_another_length_is_no_duplicate() -> None:
    states = ProducerStates()
    put(states, 0, count=3)
    refused(ErrorCode.out_of_order_sequence_number, states, 0, count=2)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    states = ProducerStates()
    assert put(states, 1234) is None
    assert put(states, 1235) is None


def test_sequences_wrap_to_zero() -> None:
    states = ProducerStates()
    put(states, SEQUENCE_MAX - 1, count=2)
    assert put(states, 0) is None
    put(states, 1, producer_id=8)
    states = ProducerStates()
    put(states, SEQUENCE_MAX, count=3)
    assert put(states, 2) is None


def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    states = ProducerStates()
    put(states, 0)
    refused(ErrorCode.out_of_order_sequence_number, states, 1, epoch=1)
    put(states, 0, epoch=1)
    refused(ErrorCode.invalid_producer_epoch, states, 1, epoch=0)


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    states = ProducerStates()
    put(states, 0, transactional=True)
    refused(ErrorCode.invalid_txn_state, states, 1)


def test_markers_of_an_old_producer_or_coordinator_are_refused() -> None:
    states = ProducerStates()
    put(states, 0, epoch=3, transactional=True)
    with pytest.raises(RequestError) as caught:
        end(states, commit=True, epoch=2)
    assert caught.value.code is ErrorCode.invalid_producer_epoch
    end(states, commit=True, epoch=3, coordinator_epoch=5)
    with pytest.raises(RequestError) as caught:
        end(states, commit=True, epoch=3, coordinator_epoch=4)
    assert caught.value.code is ErrorCode.transaction_coordinator_fenced


def test_a_marker_with_a_higher_epoch_starts_sequences_anew() -> None:
    states = ProducerStates()
    put(states, 0, transactional=True)
    end(states, commit=True, epoch=1)
    refused(ErrorCode.invalid_producer_epoch, states, 1, epoch=0)
    refused(ErrorCode.out_of_order_sequence_number, states, 1, epoch=1)
    put(states, 0, epoch=1, transactional=True)


def test_the_stable_offset_waits_for_the_marker_to_be_replicated() -> None:
    states = ProducerStates()
    put(states, 0, count=2)
    put(states, 0, producer_id=8, transactional=True)
    states.advance_high_watermark(3)
    assert states.last_stable_offset(3) == 2
    end(states, commit=True, producer_id=8)
    assert states.last_stable_offset(3) == 2
    states.advance_high_watermark(4)
    assert states.last_stable_offset(4) == 4


def test_aborted_ranges_are_found_by_overlap() -> None:
    states = ProducerStates()
    put(states, 0, producer_id=1, transactional=True)  # offset 0, aborted at 3
    put(states, 0, producer_id=2, transactional=True)  # offset 1, committed at 4
    put(states, 0, producer_id=3, transactional=True)  # offset 2, aborted at 5
    end(states, commit=False, producer_id=1)
    end(states, commit=True, producer_id=2)
    end(states, commit=False, producer_id=3)
    assert [txn.producer_id for txn in states.aborted_between(0, 6)] == [1, 3]
    assert [txn.producer_id for txn in states.aborted_between(4, 6)] == [3]
    assert [txn.producer_id for txn in states.aborted_between(0, 2)] == [1]
    states.advance_log_start(4)
    assert [txn.producer_id for txn in states.aborted_between(0, 6)] == [3]


def test_only_idle_producers_without_a_transaction_expire() -> None:
    states = ProducerStates()
    put(states, 0, producer_id=1)
    put(states, 0, producer_id=2, transactional=True)
    assert states.expire(now_ms=1000 + 500, expiration_ms=600) == 0
    assert states.expire(now_ms=1000 + 700, expiration_ms=600) == 1
    assert [entry.producer_id for entry in states] == [2]


def test_truncation_below_the_watermark_asks_for_a_rebuild() -> None:
    states = ProducerStates()
    put(states, 0)
    put(states, 1)
    states.advance_high_watermark(1)
    assert not states.truncate_to(0)
    assert states.next_offset == 2
    assert states.truncate_to(1)
    assert states.next_offset == 1


def test_a_replica_that_restarted_can_still_be_cut_above_the_watermark() -> None:
    states = ProducerStates()
    put(states, 0)
    put(states, 1)
    states.advance_high_watermark(1)
    states = ProducerStates.restore(states.snapshot())
    assert states.truncate_to(1)
    assert put(states, 1) is None, "the sequence that was cut off is awaited again"


def test_an_unclean_cut_keeps_what_is_known_to_be_left() -> None:
    states = ProducerStates()
    put(states, 0, producer_id=1, transactional=True)
    end(states, commit=False, producer_id=1)
    put(states, 0, producer_id=2)
    put(states, 1, producer_id=2)
    put(states, 0, producer_id=3, transactional=True)
    states.advance_high_watermark(states.next_offset)
    assert not states.truncate_to(3)
    states.forget_from(3)
    assert states.next_offset == 3
    assert sorted(entry.producer_id for entry in states) == [1, 2]
    assert states.first_unstable_offset is None
    assert [txn.producer_id for txn in states.aborted_between(0, 3)] == [1]
    assert put(states, 1, producer_id=2) is None
    states.forget_from(1)
    assert states.aborted_between(0, 3) == []
    assert [entry.producer_id for entry in states] == [1]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xc1garbage", ProducerStates().snapshot()[:-1]])
def test_a_broken_snapshot_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of several decoders says what is wrong
        ProducerStates.restore(data)


@dataclass(frozen=True)
class Logged:
    offset: int
    count: int
    producer_id: int
    epoch: int
    sequence: int = -1
    transactional: bool = False
    marker: str = ""


class AgainstRescan(RuleBasedStateMachine):
    """The model keeps every batch and answers each question by reading all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.log: list[Logged] = []
        self.high_watermark = 0

    @property
    def end_offset(self) -> int:
        return self.log[-1].offset + self.log[-1].count if self.log else 0

    def of(self, producer_id: int) -> list[Logged]:
        return [batch for batch in self.log if batch.producer_id == producer_id]

    def transactions(self) -> list[tuple[int, int, int | None, bool]]:
        """(producer, first offset, marker offset or None, aborted), by first offset."""
        found = []
        for producer_id in {batch.producer_id for batch in self.log}:
            first: int | None = None
            for batch in self.of(producer_id):
                if batch.marker:
                    if first is not None:
                        found.append((producer_id, first, batch.offset, batch.marker == "abort"))
                    first = None
                elif batch.transactional and first is None:
                    first = batch.offset
            if first is not None:
                found.append((producer_id, first, None, False))
        return sorted(found, key=lambda txn: txn[1])

    def expected_answer(self, wanted: Logged) -> str | int:
        mine = self.of(wanted.producer_id)
        if not mine:
            return "append"
        epoch = mine[-1].epoch
        if wanted.epoch < epoch:
            return "invalid_producer_epoch"
        current = [batch for batch in mine if batch.epoch == wanted.epoch and not batch.marker]
        for batch in current[-5:]:
            if (batch.sequence, batch.count) == (wanted.sequence, wanted.count):
                return batch.offset
        expected = current[-1].sequence + current[-1].count if current else 0
        if wanted.sequence != expected:
            return "out_of_order_sequence_number"
        is_open = any(txn[0] == wanted.producer_id and txn[2] is None for txn in self.transactions())
        return "invalid_txn_state" if is_open and not wanted.transactional else "append"

    @rule(
        producer_id=st.integers(1, 3),
        bump=st.sampled_from([0, 0, 0, 0, 1, -1]),
        back=st.integers(-1, 6),
        count=st.integers(1, 2),
        transactional=st.booleans(),
    )
    def produce(self, producer_id: int, bump: int, back: int, count: int, transactional: bool) -> None:
        mine = self.of(producer_id)
        epoch = max(0, (mine[-1].epoch if mine else 0) + bump)
        current = [batch for batch in mine if batch.epoch == epoch and not batch.marker]
        following = current[-1].sequence + current[-1].count if current else 0
        if back >= 1 and len(current) >= back:
            sequence, count = current[-back].sequence, current[-back].count
        else:
            sequence = following + (1 if back == -1 else 0)
        wanted = Logged(self.end_offset, count, producer_id, epoch, sequence, transactional)
        expected = self.expected_answer(wanted)
        answer: str | int = "append"
        try:
            duplicate = put(
                self.states,
                sequence,
                producer_id=producer_id,
                epoch=epoch,
                count=count,
                transactional=transactional,
            )
            if duplicate is not None:
                answer = duplicate.base_offset
        except RequestError as error:
            answer = error.code.name
        assert answer == expected
        if answer == "append":
            self.log.append(wanted)

    @rule(producer_id=st.integers(1, 3), bump=st.integers(0, 1), commit=st.booleans())
    def marker(self, producer_id: int, bump: int, commit: bool) -> None:
        mine = self.of(producer_id)
        epoch = (mine[-1].epoch if mine else 0) + bump
        end(self.states, commit=commit, producer_id=producer_id, epoch=epoch)
        kind = "commit" if commit else "abort"
        self.log.append(Logged(self.end_offset, 1, producer_id, epoch, marker=kind))

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def replicate(self, data: st.DataObject) -> None:
        self.high_watermark = data.draw(st.integers(self.high_watermark, self.end_offset))
        self.states.advance_high_watermark(self.high_watermark)

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        cuts = [batch.offset for batch in self.log if batch.offset >= self.high_watermark]
        offset = data.draw(st.sampled_from([*cuts, self.end_offset]))
        assert self.states.truncate_to(offset)
        self.log = [batch for batch in self.log if batch.offset < offset]

    @rule()
    def restart(self) -> None:
        """A snapshot is taken anywhere: what lies above the watermark may be cut off after the restart."""
        self.states = ProducerStates.restore(self.states.snapshot())

    @invariant()
    def same_view(self) -> None:
        transactions = self.transactions()
        unstable = [txn[1] for txn in transactions if txn[2] is None or txn[2] >= self.high_watermark]
        assert self.states.first_unstable_offset == min(unstable, default=None)
        stable = self.states.last_stable_offset(self.high_watermark)
        assert stable == min([*unstable, self.high_watermark])
        aborted = [(txn[0], txn[1], txn[2]) for txn in transactions if txn[3]]
        for low in range(0, self.end_offset + 1, 3):
            for high in range(low, self.end_offset + 1, 3):
                seen = self.states.aborted_between(low, high)
                expected = [txn for txn in aborted if txn[2] is not None and txn[2] >= low and txn[1] < high]
                assert {(t.producer_id, t.first_offset, t.last_offset) for t in seen} >= set(expected)
                assert len(seen) == len(expected)
        assert self.states.next_offset == self.end_offset


AgainstRescan.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstRescan = AgainstRescan.TestCase


def test_a_restart_does_not_forget_how_to_undo() -> None:
    """A replica that restarts may be told right away to drop what was never committed."""
    states = ProducerStates()
    put(states, 0)
    put(states, 1)
    states.advance_high_watermark(1)
    put(states, 2, transactional=True)
    restored = ProducerStates.restore(states.snapshot())
    assert restored.truncate_to(1)
    assert restored.first_unstable_offset is None
    assert put(restored, 1) is None
    assert put(restored, 2) is None
    assert not restored.truncate_to(0)
