"""A replica whose disk lost records gives them up only when nothing counts on it any more."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from chronik.metadata.state import ClusterState
from chronik.metadata.store import MetadataStore
from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.model import ErrorCode, RequestError
from chronik.records.batch import headers
from chronik.replication.partition import Partition
from chronik.replication.repair import WAIT_SECONDS_MAX, Repairs, wait_seconds
from chronik.storage.log_parts import SegmentDamage
from chronik.storage.soundness import sound_until
from tests.segments import flip_bit
from tests.unit.replication.support import Alone, Replicas, context, put
from tests.unit.storage.support import opened

BATCHES = 40


class Remembering(Alone):
    def __init__(self) -> None:
        self.begun: list[SegmentDamage] = []

    def begin(self, partition: Partition, damage: SegmentDamage) -> None:
        self.begun.append(damage)


def assignment(leader: int, isr: tuple[int, ...], epoch: int, partition_epoch: int) -> Assignment:
    return Assignment(
        partition=0,
        replicas=(1, 2, 3),
        isr=isr,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
    )


async def fill(root: Path) -> list[Path]:
    """A log of several segments, closed; its sealed files."""
    async with opened(root) as (store, _):
        partition = Replicas(store).add("orders", segment_bytes=2048)
        for number in range(BATCHES):
            put(partition, (b"k", b"v" * 200), now_ms=1000 + number)
        await store.wal.drained()
    return sorted((root / "topics" / "orders-0").glob("*.log"))[:-1]


async def test_a_damaged_batch_is_not_skipped_while_another_replica_is_in_sync(tmp_path: Path) -> None:
    damaged = (await fill(tmp_path))[1]
    flip_bit(damaged, 150)
    around = Remembering()
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store, context(around)).add("orders", segment_bytes=2048)
        partition.assign(assignment(1, (1, 2), 1, 1))
        end = partition.log_end_offset
        with pytest.raises(RequestError) as refused:
            await partition.read(int(damaged.stem), 10_000, end)
        assert refused.value.code == ErrorCode.not_leader_or_follower
        assert [found.segment.path for found in around.begun] == [damaged]
        with pytest.raises(RequestError):
            await partition.read(int(damaged.stem), 10_000, end)
        assert len(around.begun) == 1, "one repair at a time"
        segments = partition.log.segments
        assert sound_until(segments, around.begun[0].segment) == int(damaged.stem)


@pytest.mark.parametrize("bit", [0, 1, 3, 21, 54, 63])
@pytest.mark.parametrize("which", [0, 3, -1], ids=["first", "inner", "last"])
async def test_a_batch_that_says_offsets_of_others_is_damaged(tmp_path: Path, which: int, bit: int) -> None:
    """Its offset stands outside its checksum: readers got records under offsets that are not theirs."""
    damaged = (await fill(tmp_path))[1]
    data = bytearray(damaged.read_bytes())
    before = [header.base_offset for _, header in headers(data)]
    place, header = list(headers(data))[which]
    data[place : place + 8] = ((header.base_offset ^ 1 << bit) & 2**64 - 1).to_bytes(8, "big")
    damaged.write_bytes(data)
    around = Remembering()
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store, context(around)).add("orders", segment_bytes=2048)
        partition.assign(assignment(1, (1, 2), 1, 1))
        end = partition.log_end_offset
        for offset in reversed(before):
            for size in (1, 10_000):  # one batch, or all that follow
                try:
                    found = await partition.read(offset, size, end)
                except RequestError as error:
                    assert error.code == ErrorCode.not_leader_or_follower
                    continue
                got = [one.base_offset for _, one in headers(b"".join(found.buffers))]
                assert got == list(range(offset, offset + len(got)))
                assert header.base_offset not in got
        assert [found.segment.path for found in around.begun] == [damaged]


async def test_the_rest_is_served_if_there_is_no_repair(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = (await fill(tmp_path))[1]
    flip_bit(damaged, 150)
    around = Remembering()
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store, context(around)).add("orders", segment_bytes=2048)
        partition.assign(assignment(1, (1,), 1, 1))
        found = await partition.read(int(damaged.stem), 10_000, partition.log_end_offset)
        assert found.size_bytes
        assert around.begun == []
        assert "lost on this disk, reading goes on" in caplog.text


async def test_a_reader_skips_nothing_however_often_the_disk_was_damaged(tmp_path: Path) -> None:
    """From the fourth damage on readers went past it, though followers had the records."""
    damaged = (await fill(tmp_path))[1]
    flip_bit(damaged, 150)
    async with opened(tmp_path) as (store, _):
        repairs = Repairs(cast(MetadataStore, SimpleNamespace(state=ClusterState())))
        around = dataclasses.replace(context(), repairs=repairs)
        partition = Replicas(store, around).add("orders", segment_bytes=2048)
        partition.assign(assignment(1, (1, 2), 1, 1))
        for _ in range(6):
            with pytest.raises(RequestError) as refused:
                await partition.read(int(damaged.stem), 10_000, partition.log_end_offset)
            assert refused.value.code == ErrorCode.not_leader_or_follower
            partition.is_damaged = False  # as after a repair
        await repairs.stop()


async def test_a_log_that_lost_its_damaged_segment_while_the_repair_waited_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention had deleted it, and the repair emptied the sound rest."""
    damaged = (await fill(tmp_path))[1]
    flip_bit(damaged, 150)
    around, cuts = Remembering(), list[int]()
    monkeypatch.setattr(Partition, "repair_from", lambda _self, offset: cuts.append(offset))
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store, context(around)).add("orders", segment_bytes=2048)
        partition.assign(assignment(1, (1, 2), 1, 1))
        with pytest.raises(RequestError):
            await partition.read(int(damaged.stem), 10_000, partition.log_end_offset)
        await partition.log.advance_start(partition.log.segments[2].base_offset)
        partition.log.schedule_delete(partition.log.take_before_start())
        repairs = Repairs(cast(MetadataStore, SimpleNamespace(state=ClusterState())))
        await repairs._repair(partition, around.begun[0], 0.0)
        assert cuts == []
        assert not partition.is_damaged


def test_a_disk_that_goes_on_losing_records_is_rewritten_less_and_less_often() -> None:
    waits = [wait_seconds(number) for number in range(1, 30)]
    assert waits[:6] == [0, 0, 0, 1, 2, 4]
    assert waits == sorted(waits)
    assert waits[-1] == WAIT_SECONDS_MAX
    assert wait_seconds(10_000) == WAIT_SECONDS_MAX


async def test_two_damaged_neighbours_are_cut_together(tmp_path: Path) -> None:
    first, second = (await fill(tmp_path))[1:3]
    flip_bit(first, first.stat().st_size - 10)
    flip_bit(second, 150)
    async with opened(tmp_path) as (store, _):
        log = Replicas(store).add("orders", segment_bytes=2048).log
        damaged = next(one for one in log.segments if one.path == second)
        assert sound_until(log.segments, damaged) == int(first.stem)


async def test_a_log_is_cut_only_in_a_new_epoch_in_which_others_lead_and_are_in_sync(tmp_path: Path) -> None:
    damaged = (await fill(tmp_path))[1]
    flip_bit(damaged, 150)
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store, context(Remembering())).add("orders", segment_bytes=2048)
        partition.assign(assignment(1, (1, 2), 1, 1))
        away = assignment(2, (2,), 2, 2)
        assert partition.reset_at(away) is None, "it is not damaged"
        with pytest.raises(RequestError):
            await partition.read(int(damaged.stem), 10_000, partition.log_end_offset)
        assert partition.reset_at(away) is None, "nobody knows from where"
        partition.repair_from(12)
        assert partition.reset_at(away) == 12
        assert partition.reset_at(assignment(2, (2,), 1, 2)) is None, "what it acknowledged counts"
        assert partition.reset_at(assignment(2, (1, 2), 2, 2)) is None, "it is in sync"
        assert partition.reset_at(assignment(1, (1, 2), 2, 2)) is None, "it leads"
        assert partition.reset_at(assignment(-1, (2,), 2, 2)) is None, "nobody leads"
        partition.repair_failed()
        assert partition.reset_at(away) is None
