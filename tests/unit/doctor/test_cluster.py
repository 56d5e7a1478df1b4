"""What the doctor says about partitions and transactions."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest

from chronik.client.metadata import PartitionInfo, TopicInfo
from chronik.client.transactions import ActiveProducer, TransactionDescription
from chronik.doctor.cluster import HANGING_MAX, HANGING_MS, hanging, over_timeout, partitions
from chronik.model import NO_LEADER, ErrorCode, TopicPartition

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
TP = TopicPartition("orders", 0)


def topic(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> TopicInfo:
    partition = PartitionInfo(
        partition=0, leader_id=leader, leader_epoch=1, replicas=replicas, isr=isr, offline_replicas=()
    )
    return TopicInfo(
        name="orders", topic_id=None, is_internal=False, error_code=ErrorCode.none, partitions={0: partition}
    )


def test_partitions_without_leader_or_replicas() -> None:
    assert [one.state for one in partitions([topic(1, (1, 2), (1, 2))])] == ["ok"]
    (offline,) = partitions([topic(NO_LEADER, (1, 2), (2,))])
    assert (offline.check, offline.state) == ("offline partitions", "wrong")
    (short,) = partitions([topic(1, (1, 2, 3), (1, 3))])
    assert (short.check, short.state) == ("replicas", "wrong")
    assert "orders-0 (not in sync: 2)" in short.message


def description(*, age_s: float) -> TransactionDescription:
    return TransactionDescription(
        transactional_id="pay",
        producer_id=7,
        producer_epoch=0,
        state="Ongoing",
        timeout_ms=60_000,
        started_at=NOW - datetime.timedelta(seconds=age_s),
        partitions=(TP,),
        coordinator_id=1,
    )


def test_a_transaction_over_its_timeout() -> None:
    assert over_timeout([description(age_s=65)], NOW) == []
    (found,) = over_timeout([description(age_s=75)], NOW)
    assert found.fix == "End it: `chronik transaction abort pay`."


@pytest.mark.parametrize(
    ("age_ms", "known", "count"), [(HANGING_MS - 1, 0, 0), (HANGING_MS + 1, 0, 1), (HANGING_MS + 1, 1, 0)]
)
def test_a_transaction_that_no_coordinator_knows(age_ms: int, known: int, count: int) -> None:
    found = hanging([(TP, open_producer(7, age_ms))], [description(age_s=1)] * known, NOW)
    assert len(found) == count
    assert all("--topic orders --partition 0 --producer-id 7" in (one.fix or "") for one in found)


def open_producer(producer_id: int, age_ms: int) -> ActiveProducer:
    return ActiveProducer(
        producer_id=producer_id,
        producer_epoch=0,
        last_sequence=0,
        last_timestamp_ms=int(NOW.timestamp() * 1000) - age_ms,
        coordinator_epoch=0,
        transaction_start_offset=4,
    )


def test_very_many_open_transactions_take_one_look_at_each_that_is_known() -> None:
    looks = 0

    class Known(list[TransactionDescription]):
        def __iter__(self) -> Iterator[TransactionDescription]:
            nonlocal looks
            for one in super().__iter__():
                looks += 1
                yield one

    known = Known([description(age_s=1)] * 500)
    producers = [(TP, open_producer(100 + n, HANGING_MS + 1)) for n in range(500)]
    found = hanging(producers, known, NOW)
    assert looks == len(known)
    assert len(found) == HANGING_MAX + 1
    assert found[-1].message == "400 more hang like these"
