"""Relaxed logs: appends that the WAL reports before it has synced them, and the syncs that follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from chronik.model import StorageError, TopicPartition
from chronik.records.batch import check_batch
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.sim.disk import SimFile
from chronik.storage import unsynced, wal_queue
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from chronik.storage.wal_format import WalEntryKind, WalScanner
from tests.unit.storage.support import TOPIC_ID, TP, append, append_durably, open_orders, read_values
from tests.unit.storage.test_power_loss import OPTIONS, Machine

WITHIN = 1.0
RELAXED = LogConfig(sync_within_seconds=WITHIN)
OTHER = TopicPartition("strict", 0)
LARGE = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=1 << 20))
SEEDS = range(25)


def relaxed(store: LogStore) -> PartitionLog:
    return open_orders(store, RELAXED)


def strict(store: LogStore) -> PartitionLog:
    return store.open_log(OTHER, TOPIC_ID.__class__(int=78), LogConfig())


async def named(store: LogStore) -> PartitionLog:
    """A relaxed log whose name the WAL has: the entry that says so is synced with its round."""
    log = relaxed(store)
    await append_durably(store, log, b"first")
    assert log.synced_end_offset == 1
    return log


async def values(store: LogStore) -> list[bytes]:
    return [value for _, value in await read_values(relaxed(store))]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the WAL files that were synced."""
    seen: list[str] = []
    real = SimFile.sync

    def sync(self: SimFile) -> None:
        if self._path.parent.name == "wal":
            seen.append(self._path.name)
        real(self)

    monkeypatch.setattr(SimFile, "sync", sync)
    return seen


def test_a_relaxed_append_is_reported_when_it_is_written(syncs: list[str]) -> None:
    async def work(store: LogStore) -> None:
        log = await named(store)
        syncs.clear()
        for number in range(5):
            await append_durably(store, log, b"%d" % number)
        assert (log.durable_end_offset, log.synced_end_offset) == (6, 1)
        assert syncs == []
        assert store.wal.stats.relaxed_rounds == 5
        assert store.wal.unsynced_bytes > 0

    Machine(1, LARGE).run(work)


def test_it_is_synced_in_time(syncs: list[str]) -> None:
    async def work(store: LogStore) -> None:
        log = await named(store)
        syncs.clear()
        await append_durably(store, log, b"one")
        await asyncio.sleep(WITHIN * unsynced.DUE_SHARE - 0.01)
        await append_durably(store, log, b"two")
        assert syncs == []
        await asyncio.sleep(0.1)
        assert (log.synced_end_offset, len(syncs)) == (3, 1)
        assert store.wal.unsynced_bytes == 0
        assert store.wal.unsynced_seconds == 0
        await asyncio.sleep(WITHIN)
        assert len(syncs) == 1, "nothing was written since"

    Machine(1, LARGE).run(work)


def test_a_shorter_time_is_not_kept_waiting_by_a_longer_one() -> None:
    async def work(store: LogStore) -> None:
        slow = store.open_log(OTHER, TOPIC_ID.__class__(int=78), LogConfig(sync_within_seconds=60.0))
        await append_durably(store, slow, b"first")
        log = await named(store)
        await append_durably(store, slow, b"slow")
        await append_durably(store, log, b"quick")
        await asyncio.sleep(WITHIN)
        assert log.synced_end_offset == log.log_end_offset
        assert slow.synced_end_offset == slow.log_end_offset

    Machine(1, LARGE).run(work)


def test_a_round_with_anything_strict_in_it_syncs_everything(syncs: list[str]) -> None:
    async def work(store: LogStore) -> None:
        log, other = await named(store), strict(store)
        await append_durably(store, other, b"named")
        syncs.clear()
        await append_durably(store, log, b"before")
        assert log.synced_end_offset == 1
        append(log, b"beside")
        await append_durably(store, other, b"strict")
        assert (log.synced_end_offset, len(syncs)) == (3, 1)

    Machine(1, LARGE).run(work)


def test_so_many_records_are_never_unsynced() -> None:
    async def work(store: LogStore) -> None:
        log = open_orders(store, LogConfig(sync_within_seconds=60.0, sync_records=5))
        await append_durably(store, log, b"first")
        unsynced_ends = []
        for _ in range(6):
            await append_durably(store, log, b"a", b"b")
            unsynced_ends.append(log.durable_end_offset - log.synced_end_offset)
        assert unsynced_ends == [2, 4, 0, 2, 4, 0]

    Machine(1, LARGE).run(work)


def test_records_that_a_failed_round_took_back_count_as_synced_no_more() -> None:
    machine = Machine(1, LARGE)

    async def work(store: LogStore) -> None:
        log = open_orders(store, LogConfig(sync_within_seconds=60.0, sync_records=5))
        await append_durably(store, log, b"first")
        machine.disk.sync_failures = 1
        await append_durably(store, log, *[b"rejected"] * 20)
        assert log.log_end_offset == 1
        for _ in range(12):
            await append_durably(store, log, b"a")
            assert log.durable_end_offset - log.synced_end_offset < 5

    machine.run(work)


def test_the_end_of_a_transaction_is_synced_and_with_it_its_records() -> None:
    async def work(store: LogStore) -> None:
        log = await named(store)
        await append_durably(store, log, b"record")
        assert log.synced_end_offset == 1
        marker = build_batch([Record(key=None, value=b"", timestamp_ms=1)])
        header = check_batch(marker)
        marker[22] |= 0x20  # a control batch; its checksum is not looked at here
        header = header._replace(attributes=header.attributes | 0x20)
        log.append(memoryview(marker), header, 0, now_ms=1)
        await store.wal.drained()
        assert log.synced_end_offset == 3

    Machine(1, LARGE).run(work)


def test_much_is_synced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever time a topic allows: segments are written, and memory is given back, behind the sync."""
    monkeypatch.setattr(unsynced, "UNSYNCED_BYTES_MAX", 10_000)

    async def work(store: LogStore) -> None:
        log = open_orders(store, LogConfig(sync_within_seconds=60.0))
        for _ in range(40):
            await append_durably(store, log, bytes(1000))
        await asyncio.sleep(0.2)
        assert log.log_end_offset - log.synced_end_offset < 12
        assert store.wal.stats.relaxed_sync_seconds.count > 1

    Machine(1, LARGE).run(work)


def test_who_waits_for_the_sync_under_way_waits_for_no_other() -> None:
    """Nothing was written since it began, and nothing may come: a node that stops would wait for ever."""

    async def work(store: LogStore) -> None:
        log = await named(store)
        await append_durably(store, log, b"last")
        first = asyncio.ensure_future(store.wal.synced())
        await asyncio.sleep(0)
        await asyncio.wait_for(store.checkpoint(), 5)
        assert first.done()
        assert log.synced_end_offset == 2

    Machine(1, LARGE).run(work)


def test_segments_are_never_ahead_of_what_the_wal_has_on_disk() -> None:
    async def work(store: LogStore) -> None:
        log = await named(store)
        await append_durably(store, log, b"unsynced")
        await store.flusher.flushed()
        assert log.flushed_offset == 1
        await store.checkpoint()
        assert (log.synced_end_offset, log.flushed_offset) == (2, 2)

    Machine(1, LARGE).run(work)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_process_loses_nothing(seed: int) -> None:
    machine = Machine(seed)

    async def fill(store: LogStore) -> None:
        log = await named(store)
        for number in range(50):
            await append_durably(store, log, b"%d" % number)

    machine.run(fill)
    machine.disk.finish(machine.loop.now)
    assert machine.run(values) == [b"first", *(b"%d" % number for number in range(50))]


@pytest.mark.parametrize("options", [OPTIONS, LARGE])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_loss_leaves_a_beginning_and_all_that_was_synced(seed: int, options: StoreOptions) -> None:
    """Whatever pages of the unsynced rounds the disk has: no gap, no record of a strict log is missing."""
    machine = Machine(seed, options)
    synced: list[int] = []

    async def fill(store: LogStore) -> None:
        log, other = await named(store), strict(store)
        for number in range(60):
            await append_durably(store, log, b"%d" % number * 10)
            if number % 20 == 11:
                await append_durably(store, other, b"%d" % number)
            if number % 16 == 9:
                await asyncio.sleep(0.3)
        synced.append(log.synced_end_offset)

    async def look(store: LogStore) -> tuple[list[bytes], list[bytes]]:
        return await values(store), [value for _, value in await read_values(strict(store))]

    machine.run(fill)
    machine.disk.lose_power(machine.loop.now)
    found, others = machine.run(look)
    expected = [b"first", *(b"%d" % number * 10 for number in range(60))]
    assert found == expected[: len(found)]
    assert len(found) >= synced[0] > 1
    assert others == [b"11", b"31", b"51"]
    machine.disk.lose_power()
    assert machine.run(look) == (found, others)


@pytest.mark.parametrize("how", ["timer", "strict round", "checkpoint"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_failed_sync_left_in_doubt_is_written_again(seed: int, how: str) -> None:
    """It was acknowledged, and the kernel forgets pages that it could not write."""
    machine = Machine(seed, LARGE)

    async def fill(store: LogStore) -> None:
        log, other = await named(store), strict(store)
        await append_durably(store, other, b"named")
        for number in range(5):
            await append_durably(store, log, b"%d" % number)
        machine.disk.sync_failures = 1
        if how == "strict round":
            await append_durably(store, other, b"rejected")
        elif how == "checkpoint":
            with pytest.raises(StorageError):
                await store.checkpoint()
        else:
            await asyncio.sleep(WITHIN)
        await append_durably(store, log, b"more")
        await store.wal.synced()
        assert log.synced_end_offset == log.log_end_offset == 7
        assert other.log_end_offset == 1
        await store.checkpoint()

    machine.run(fill)
    machine.disk.lose_power()
    assert machine.run(values) == [b"first", b"0", b"1", b"2", b"3", b"4", b"more"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_round_that_syncs_waits_for_the_sync_under_way(seed: int) -> None:
    """Only one of two that run at once hears that the device failed: the other must not vouch for both."""
    machine = Machine(seed, LARGE)

    async def fill(store: LogStore) -> None:
        log, other = await named(store), strict(store)
        await append_durably(store, other, b"named")
        await append_durably(store, log, b"in doubt")
        machine.disk.slowness = 1000.0
        machine.disk.sync_failures = 1
        syncing = asyncio.ensure_future(store.wal.synced())
        await asyncio.sleep(0.001)
        assert machine.disk.sync_failures == 0, "it has begun, and will fail"
        machine.disk._slowness = 1.0  # of what begins from now on
        await append_durably(store, other, b"strict")
        with pytest.raises(StorageError):
            await syncing
        await asyncio.sleep(2 * WITHIN)
        assert log.synced_end_offset == 2

    machine.run(fill)
    machine.disk.lose_power(machine.loop.now)
    assert machine.run(values) == [b"first", b"in doubt"]


@pytest.mark.parametrize("seed", range(60))
def test_a_power_loss_while_it_is_written_again_leaves_no_gap(seed: int) -> None:
    machine = Machine(seed, LARGE)

    async def fill(store: LogStore) -> None:
        log = await named(store)
        await store.flusher.flushed()
        for number in range(8):
            await append_durably(store, log, b"%d" % number + bytes(700))
        machine.disk.sync_failures = 1
        with pytest.raises(StorageError):
            await store.wal.synced()
        machine.view.crash_in = 1 + seed % 8
        await asyncio.sleep(WITHIN)
        await append_durably(store, log, b"more")

    machine.run(fill)
    machine.disk.lose_power()
    found = machine.run(values)
    expected = [b"first", *(b"%d" % number + bytes(700) for number in range(8)), b"more"]
    assert found == expected[: len(found)]


def test_a_disk_that_takes_nothing_for_a_while_gets_it_again_later() -> None:
    machine = Machine(1, OPTIONS)

    async def fill(store: LogStore) -> None:
        log = await named(store)
        await append_durably(store, log, b"in doubt")
        machine.disk.sync_failures = 1
        machine.disk.free_bytes = 0
        await asyncio.sleep(5 * WITHIN)
        assert log.synced_end_offset == 1
        with pytest.raises(StorageError):
            await store.checkpoint()
        machine.disk.free_bytes = None
        await asyncio.sleep(5 * WITHIN)
        assert log.synced_end_offset == 2
        await store.checkpoint()

    machine.run(fill)
    machine.disk.lose_power()
    assert machine.run(values) == [b"first", b"in doubt"]


def cut(log: PartitionLog) -> None:
    log.truncate(3)


def start_later(log: PartitionLog) -> None:
    log.restart_at(9)


@pytest.mark.parametrize(("change", "left"), [(cut, 3), (start_later, 0)])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_in_doubt_can_be_cut(seed: int, change: Callable[[PartitionLog], None], left: int) -> None:
    machine = Machine(seed, LARGE)

    async def fill(store: LogStore) -> None:
        log = await named(store)
        for number in range(1, 6):
            await append_durably(store, log, b"%d" % number)
        machine.disk.sync_failures = 1
        await asyncio.sleep(WITHIN * unsynced.DUE_SHARE + 0.0001)
        change(log)
        await asyncio.sleep(2 * WITHIN)
        assert log.synced_end_offset == log.log_end_offset
        await append_durably(store, log, b"after")
        await asyncio.sleep(WITHIN)
        assert log.synced_end_offset == log.log_end_offset

    machine.run(fill)
    machine.disk.lose_power()
    assert machine.run(values) == [*[b"first", b"1", b"2", b"3"][:left], b"after"]


def rounds_of(store: LogStore, path: Path) -> list[int]:
    """Of each append in a file of the WAL, the number of its round."""
    file = store.disk.open(path)
    scanner = WalScanner("", file.read_at, file.size(), -1, is_last_file=True)
    return [entry.header.round for entry in scanner.entries() if entry.header.kind == WalEntryKind.APPEND]


@pytest.mark.parametrize("seed", SEEDS)
def test_rot_at_the_end_of_a_full_file_costs_nothing_behind_it(seed: int) -> None:
    """A full file is synced before the next one begins, whose higher number says so."""
    machine = Machine(seed, OPTIONS)

    async def fill(store: LogStore) -> None:
        log = await named(store)
        while len(store.wal.files) < 4:
            for number in range(3):
                append(log, b"%d" % number * 50)
            await store.wal.drained()
        for former, following in pairwise(store.wal.files[:3]):
            assert rounds_of(store, former.path)[-1] < rounds_of(store, following.path)[0]

    machine.run(fill)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_waits_for_a_sync_has_another_number_than_what_that_syncs(seed: int) -> None:
    machine = Machine(seed, LARGE)

    async def fill(store: LogStore) -> None:
        log, other = await named(store), strict(store)
        await append_durably(store, other, b"named")
        await append_durably(store, log, b"relaxed")
        machine.disk.slowness = 1000.0
        synced = asyncio.ensure_future(store.wal.synced())
        await asyncio.sleep(0.001)
        append(other, b"behind it")
        await asyncio.sleep(0.001)
        assert not synced.done()
        append(log, b"with that")
        machine.disk.slowness = 1.0
        await store.wal.drained()
        await synced
        *_, before, one, two = rounds_of(store, store.wal.files[-1].path)
        assert before < one == two

    machine.run(fill)


def test_relaxed_rounds_share_a_number_until_they_are_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A higher number says that what is before it was synced: recovery takes a hole there for damage."""
    monkeypatch.setattr(wal_queue, "GROUP_BYTES_MAX", 3000)
    machine = Machine(1, LARGE)
    numbers: list[int] = []

    async def fill(store: LogStore) -> None:
        log = await named(store)
        for _ in range(3):
            await append_durably(store, log, b"together")
        await store.wal.synced()
        await append_durably(store, log, b"behind a sync")
        for _ in range(8):
            await append_durably(store, log, bytes(900))
        numbers.extend(rounds_of(store, store.wal.files[-1].path))

    machine.run(fill)
    first, *rest = [numbers.count(number) for number in sorted(set(numbers))]
    assert first == 1, "the round that names the log is synced"
    assert rest[0] == 3
    assert max(rest) < 6, "however long it goes on, some round is synced"
    assert TP.topic == "orders"
