"""Transactions: every refusal by name, records, and random histories against a plain model."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.model import ErrorCode, InvariantViolated, RequestError, TopicPartition
from chronik.transactions.records import decode_key, decode_value, encode_key, encode_value
from chronik.transactions.transaction import EPOCH_MAX, V2, TransactionMetadata, TxnRecord, TxnState

TP0, TP1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 60_000


def fresh() -> TransactionMetadata:
    return TransactionMetadata("tx", TxnRecord(producer_id=1, timeout_ms=TIMEOUT_MS), coordinator_epoch=0)


def init(txn: TransactionMetadata, *, now_ms: int = 0, expected: tuple[int, int] = (-1, -1)) -> TxnRecord:
    record = txn.init_producer(
        timeout_ms=TIMEOUT_MS,
        expected_producer_id=expected[0],
        expected_epoch=expected[1],
        new_producer_id=99,
        now_ms=now_ms,
    )
    return write(txn, record)


def write(txn: TransactionMetadata, record: TxnRecord | None) -> TxnRecord:
    if record is not None and record is not txn.record:
        txn.begin(record)
        txn.done()
    return txn.record


def add(
    txn: TransactionMetadata, *tps: TopicPartition, epoch: int, producer_id: int = 1, version: int = 0
) -> None:
    record = txn.add_partitions(
        producer_id=producer_id,
        producer_epoch=epoch,
        partitions=frozenset(tps),
        now_ms=10,
        version=version,
    )
    write(txn, record)


def end(
    txn: TransactionMetadata, *, epoch: int, commit: bool = True, producer_id: int = 1, version: int = 0
) -> TxnRecord:
    record = txn.end(
        producer_id=producer_id,
        producer_epoch=epoch,
        commit=commit,
        now_ms=20,
        version=version,
        new_producer_id=99,
    )
    return write(txn, record)


def complete(txn: TransactionMetadata) -> TxnRecord:
    return write(txn, txn.complete(now_ms=30))


def refused(code: ErrorCode, act: object, *args: object, **kwargs: object) -> None:
    with pytest.raises(RequestError) as caught:
        act(*args, **kwargs)  # type: ignore[operator]
    assert caught.value.code is code


def test_commit_and_again() -> None:
    txn = fresh()
    assert init(txn).producer_epoch == 0
    add(txn, TP0, epoch=0)
    add(txn, TP0, TP1, epoch=0)
    prepared = end(txn, epoch=0)
    assert (prepared.state, prepared.partitions) == (TxnState.PREPARE_COMMIT, {TP0, TP1})
    assert complete(txn).state is TxnState.COMPLETE_COMMIT
    assert end(txn, epoch=0).state is TxnState.COMPLETE_COMMIT  # a retry
    add(txn, TP0, epoch=0)
    assert txn.record.partitions == {TP0}


def test_adding_what_is_there_writes_nothing() -> None:
    txn = fresh()
    init(txn)
    add(txn, TP0, TP1, epoch=0)
    again = txn.add_partitions(producer_id=1, producer_epoch=0, partitions=frozenset({TP0}), now_ms=0)
    assert again is None


def test_init_raises_the_epoch_and_fences() -> None:
    txn = fresh()
    init(txn)
    assert init(txn).producer_epoch == 1
    refused(ErrorCode.producer_fenced, add, txn, TP0, epoch=0)
    refused(ErrorCode.producer_fenced, end, txn, epoch=0)
    refused(ErrorCode.producer_fenced, add, txn, TP0, epoch=2)


def test_another_producer_id_is_an_invalid_mapping() -> None:
    txn = fresh()
    init(txn)
    refused(ErrorCode.invalid_producer_id_mapping, add, txn, TP0, epoch=0, producer_id=2)
    refused(ErrorCode.invalid_producer_id_mapping, end, txn, epoch=0, producer_id=2)
    refused(ErrorCode.invalid_producer_id_mapping, end, txn, epoch=0, producer_id=2, version=V2)


def test_init_during_a_transaction_aborts_it_first() -> None:
    txn = fresh()
    init(txn)
    add(txn, TP0, epoch=0)
    record = init(txn)
    assert (record.state, record.producer_epoch) == (TxnState.PREPARE_ABORT, 1)
    refused(ErrorCode.concurrent_transactions, init, txn)
    complete(txn)
    assert init(txn).producer_epoch == 2


def test_concurrent_transactions_while_ending() -> None:
    txn = fresh()
    init(txn)
    add(txn, TP0, epoch=0)
    end(txn, epoch=0)
    refused(ErrorCode.concurrent_transactions, add, txn, TP0, epoch=0)
    refused(ErrorCode.concurrent_transactions, end, txn, epoch=0)
    refused(ErrorCode.invalid_txn_state, end, txn, epoch=0, commit=False)


def test_concurrent_transactions_while_a_record_is_on_its_way() -> None:
    txn = fresh()
    init(txn)
    txn.begin(_added(txn))
    for act in (lambda: add(txn, TP1, epoch=0), lambda: end(txn, epoch=0), lambda: init(txn)):
        refused(ErrorCode.concurrent_transactions, act)
    assert txn.time_out(now_ms=10**9) is None
    txn.failed()
    assert txn.record.state is TxnState.EMPTY
    add(txn, TP1, epoch=0)
    with pytest.raises(InvariantViolated):
        txn.done()


def _added(txn: TransactionMetadata) -> TxnRecord:
    record = txn.add_partitions(
        producer_id=1,
        producer_epoch=txn.record.producer_epoch,
        partitions=frozenset({TP0}),
        now_ms=0,
    )
    assert record is not None
    return record


def test_invalid_txn_state() -> None:
    txn = fresh()
    init(txn)
    refused(ErrorCode.invalid_txn_state, end, txn, epoch=0)
    add(txn, TP0, epoch=0)
    end(txn, epoch=0, commit=False)
    complete(txn)
    refused(ErrorCode.invalid_txn_state, end, txn, epoch=0, commit=True)


def test_an_end_that_keeps_the_epoch_is_not_of_version_2() -> None:
    """Else partitions would take its markers for late repetitions, and the transaction would never end."""
    txn = fresh()
    init(txn)
    add(txn, TP0, epoch=0, version=V2)
    prepared = end(txn, epoch=0, version=0)
    assert (prepared.producer_epoch, prepared.version) == (0, 0)


def test_version_two_raises_the_epoch_at_every_end() -> None:
    txn = fresh()
    init(txn)
    add(txn, TP0, epoch=0, version=V2)
    assert end(txn, epoch=0, version=V2).producer_epoch == 1
    refused(ErrorCode.concurrent_transactions, end, txn, epoch=0, version=V2)
    complete(txn)
    assert end(txn, epoch=0, version=V2).producer_epoch == 1  # a retry gets the same answer
    refused(ErrorCode.invalid_txn_state, end, txn, epoch=1, version=V2)
    refused(ErrorCode.producer_fenced, add, txn, TP0, epoch=0, version=V2)
    add(txn, TP0, epoch=1, version=V2)
    refused(ErrorCode.producer_fenced, end, txn, epoch=0, version=V2)


def test_version_two_may_abort_nothing() -> None:
    """The client does not know whether its partitions got added before it failed (KIP-890)."""
    txn = fresh()
    init(txn)
    record = end(txn, epoch=0, commit=False, version=V2)
    assert (record.state, record.partitions, record.producer_epoch) == (
        TxnState.PREPARE_ABORT,
        frozenset(),
        1,
    )
    assert complete(txn).state is TxnState.COMPLETE_ABORT
    assert end(txn, epoch=1, commit=False, version=V2).producer_epoch == 2


def test_a_time_out_aborts_and_fences() -> None:
    txn = fresh()
    init(txn)
    add(txn, TP0, epoch=0, version=V2)
    assert txn.deadline_ms == 10 + TIMEOUT_MS
    assert txn.time_out(now_ms=TIMEOUT_MS) is None
    record = write(txn, txn.time_out(now_ms=10 + TIMEOUT_MS))
    assert (record.state, record.producer_epoch) == (TxnState.PREPARE_ABORT, 1)
    complete(txn)
    refused(ErrorCode.producer_fenced, end, txn, epoch=0, version=V2)
    refused(ErrorCode.producer_fenced, add, txn, TP0, epoch=0)
    assert init(txn, expected=(1, 0)).producer_epoch == 1  # KIP-588: the same producer may recover


def test_expected_producer_and_epoch() -> None:
    txn = fresh()
    init(txn)
    assert init(txn, expected=(1, 0)).producer_epoch == 1
    assert init(txn, expected=(1, 0)).producer_epoch == 1  # a retry
    refused(ErrorCode.producer_fenced, init, txn, expected=(7, 1))
    assert init(txn).producer_epoch == 2
    refused(ErrorCode.producer_fenced, init, txn, expected=(1, 0))
    refused(ErrorCode.producer_fenced, init, txn, expected=(1, 1))


def test_used_up_epochs_bring_a_new_producer_id() -> None:
    txn = fresh()
    txn.record = TxnRecord(producer_id=1, producer_epoch=EPOCH_MAX - 1, timeout_ms=TIMEOUT_MS)
    record = init(txn)
    assert (record.producer_id, record.producer_epoch, record.previous_producer_id) == (99, 0, 1)


def test_used_up_epochs_at_the_end_of_a_transaction() -> None:
    txn = fresh()
    txn.record = TxnRecord(producer_id=1, producer_epoch=EPOCH_MAX - 1, timeout_ms=TIMEOUT_MS)
    add(txn, TP0, epoch=EPOCH_MAX - 1, version=V2)
    prepared = end(txn, epoch=EPOCH_MAX - 1, version=V2)
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (1, EPOCH_MAX, 99)
    ended = complete(txn)
    assert (ended.producer_id, ended.producer_epoch) == (99, 0)
    assert end(txn, epoch=EPOCH_MAX - 1, version=V2).producer_id == 99  # a retry of the old producer


def test_verification_of_a_write() -> None:
    txn = fresh()
    init(txn)
    refused(ErrorCode.transaction_abortable, txn.verify_partition, producer_id=1, producer_epoch=0, tp=TP0)
    add(txn, TP0, epoch=0)
    txn.verify_partition(producer_id=1, producer_epoch=0, tp=TP0)
    refused(ErrorCode.transaction_abortable, txn.verify_partition, producer_id=1, producer_epoch=0, tp=TP1)
    end(txn, epoch=0)
    refused(ErrorCode.concurrent_transactions, txn.verify_partition, producer_id=1, producer_epoch=0, tp=TP0)


def test_only_idle_ids_expire() -> None:
    txn = fresh()
    init(txn, now_ms=100)
    assert not txn.is_expired(now_ms=199, expiration_ms=100)
    assert txn.is_expired(now_ms=200, expiration_ms=100)
    add(txn, TP0, epoch=0)
    assert not txn.is_expired(now_ms=10**9, expiration_ms=100)


@dataclass
class Partition:
    """What a partition knows: the epoch it accepts, open writes, outcomes."""

    epoch: int = -1
    open: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)


@dataclass
class Producer:
    name: str
    """Names the transaction that it is in: its writes carry it."""
    epoch: int = -1


class Story:
    """Producers of one transactional id, some of them zombies, and the partitions that they write to."""

    def __init__(self, random: Random, version: int) -> None:
        self.random = random
        self.version = version
        self.txn = fresh()
        self.now_ms = 0
        self.partitions = {tp: Partition() for tp in (TP0, TP1)}
        self.acknowledged: set[str] = set()
        self.writes: dict[str, set[TopicPartition]] = {}
        self.names = iter(f"w{number}" for number in range(10_000))
        self.producers = [Producer(next(self.names)) for _ in range(3)]

    def is_ending(self) -> bool:
        return self.txn.record.state in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

    def mark(self) -> None:
        prepared = self.txn.record
        for tp in prepared.partitions:
            state = self.partitions[tp]
            if prepared.producer_epoch < state.epoch:
                continue
            state.epoch = prepared.producer_epoch
            if prepared.state is TxnState.PREPARE_COMMIT:
                state.committed += state.open
            state.open = []
        write(self.txn, self.txn.complete(now_ms=self.now_ms))

    def init(self, producer: Producer) -> None:
        record = init(self.txn, now_ms=self.now_ms)
        producer.epoch = record.producer_epoch if record.state is TxnState.EMPTY else -1
        producer.name = next(self.names)

    def put(self, producer: Producer) -> None:
        tp = self.random.choice([TP0, TP1])
        add(self.txn, tp, epoch=producer.epoch, version=self.version)
        partition = self.partitions[tp]
        if producer.epoch >= partition.epoch:  # the partition's own fence, as in producer_state
            partition.epoch = producer.epoch
            if producer.name not in partition.open:
                partition.open.append(producer.name)
            self.writes.setdefault(producer.name, set()).add(tp)

    def finish(self, producer: Producer) -> None:
        commit = self.random.random() < 0.6
        record = end(self.txn, epoch=producer.epoch, commit=commit, version=self.version)
        if commit and producer.name in self.writes:
            self.acknowledged.add(producer.name)
        producer.epoch, producer.name = record.producer_epoch, next(self.names)

    def step(self) -> None:
        self.now_ms += self.random.randrange(2_000)
        producer = self.random.choice(self.producers)
        draw = self.random.random()
        try:
            if self.is_ending() and draw < 0.5:
                self.mark()
            elif draw < 0.02:
                write(self.txn, self.txn.time_out(now_ms=self.now_ms + TIMEOUT_MS))
            elif draw < 0.08 or producer.epoch == -1:
                self.init(producer)
            elif draw < 0.7:
                self.put(producer)
            else:
                self.finish(producer)
        except RequestError as error:
            if error.code is not ErrorCode.concurrent_transactions:
                producer.epoch = -1


@pytest.mark.parametrize("version", [0, V2])
@pytest.mark.parametrize("seed", range(15))
def test_outcomes_are_atomic(seed: int, version: int) -> None:
    story = Story(Random(f"{seed}-{version}"), version)
    for _ in range(600):
        story.step()
    if story.is_ending():
        story.mark()
    assert story.acknowledged
    for name in story.acknowledged:
        for tp in story.writes[name]:
            assert story.partitions[tp].committed.count(name) == 1, f"{name} lost or doubled in {tp}"
    for tp, partition in story.partitions.items():
        for name in partition.committed:
            assert name in story.acknowledged, f"{name} shows in {tp} but was never committed"


@given(
    st.builds(
        TxnRecord,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(-1, EPOCH_MAX),
        previous_producer_id=st.integers(-1, 2**63 - 1),
        next_producer_id=st.integers(-1, 2**63 - 1),
        timeout_ms=st.integers(0, 2**31 - 1),
        state=st.sampled_from([state for state in TxnState if state is not TxnState.EMPTY]),
        partitions=st.frozensets(
            st.builds(TopicPartition, st.sampled_from(["a", "ü", "topic.x"]), st.integers(0, 9))
        ),
        started_ms=st.integers(-1, 2**40),
        updated_ms=st.integers(-1, 2**40),
        version=st.sampled_from([0, 1, 2]),
    )
)
def test_records_round_trip(record: TxnRecord) -> None:
    assert decode_value(encode_value(record)) == record


@given(st.binary(max_size=80))
def test_nonsense_in_the_log_is_a_value_error(data: bytes) -> None:
    for decode in (decode_value, decode_key):
        try:
            decode(data)
        except ValueError:
            pass


def test_keys() -> None:
    assert decode_key(encode_key("my-tx")) == "my-tx"
    assert decode_key(b"\x00\x09\x00\x01x") is None
