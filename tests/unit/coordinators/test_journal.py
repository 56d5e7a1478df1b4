"""A coordinator acts on what is committed alone, also when it has just become one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from chronik.coordinators.journal import Journal
from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.records.batch import BatchHeader, Buffer
from chronik.replication.partition import Partition
from tests.unit.replication.support import Replicas, put
from tests.unit.storage.support import opened


def lead(partition: Partition, *isr: int, epoch: int = 1) -> None:
    partition.assign(Assignment(partition=0, replicas=(1, 2), isr=isr, leader=1, leader_epoch=epoch))


def loading(tmp_path: Path, end: Callable[[Partition], None]) -> tuple[list[int], bool]:
    """The offsets that were shown, and whether to act on them; `end` is what ends the wait."""

    async def run() -> tuple[list[int], bool]:
        async with opened(tmp_path) as (store, _):
            partition = Replicas(store).add("__transaction_state")
            lead(partition, 1, 2)
            shown: list[int] = []

            def apply(header: BatchHeader, batch: Buffer) -> None:
                shown.append(header.base_offset)

            put(partition, (b"id", b"prepared"), now_ms=1)
            await store.wal.drained()
            load = asyncio.create_task(Journal(partition, lambda: 1).load(apply))
            await store.flusher.flushed()
            for _ in range(10):
                await asyncio.sleep(0)
            assert shown == [0]
            assert not load.done(), "node 2 does not have it yet"
            end(partition)
            async with asyncio.timeout(10):
                return shown, await load

    return asyncio.run(run())


def test_it_waits_until_all_that_it_saw_is_committed(tmp_path: Path) -> None:
    assert loading(tmp_path, lambda partition: lead(partition, 1)) == ([0], True)


def test_it_does_not_act_if_others_lead_before_that(tmp_path: Path) -> None:
    assert loading(tmp_path, lambda partition: lead(partition, 1, epoch=2)) == ([0], False)


def test_what_is_written_meanwhile_is_seen_too(tmp_path: Path) -> None:
    """Markers are written by whoever ends a transaction, whether its offsets are loaded or not."""

    def mark_and_commit(partition: Partition) -> None:
        put(partition, (b"id", b"marker"), now_ms=1)
        lead(partition, 1)

    assert loading(tmp_path, mark_and_commit) == ([0, 1], True)
