"""What is durable must survive a power loss, whatever of the rest the disk happened to keep (L02)."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chronik.model import StorageError
from chronik.sim.disk import DiskView, SimDisk
from chronik.sim.loop import SimLoop
from chronik.sim.process import Process
from chronik.storage import reading, wal_queue
from chronik.storage.disk import IoThread
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.recovery import open_store
from chronik.storage.store import CHECKPOINT_SECONDS, LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from tests.unit.storage.support import append, append_durably, open_orders, read_values

ROOT = Path("/data/node")
OPTIONS = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=4096))
SEEDS = range(25)


class Machine:
    """A disk, and one process after the other that opens a store on it."""

    def __init__(self, seed: int, options: StoreOptions = OPTIONS) -> None:
        self.options = options
        self.loop = SimLoop(random.Random(seed))
        self.disk = SimDisk(random.Random(seed))
        self.view: DiskView
        self.processes: list[Process] = []
        """Dead ones too: what they had begun is not torn down while others run."""

    def run(self, work, *, crash_in: int | None = None, crash_at_start: int | None = None):
        """`work(store)` in a process that is killed afterwards, or inside that change of the disk.

        `crash_at_start` counts from the start of its recovery, `crash_in` from the end.
        """

        async def main():
            process = Process("node", "host")
            self.processes.append(process)
            died = self.loop.create_future()

            def crash(_why: str) -> None:
                self.loop.kill(process)
                died.set_result(None)

            self.view = DiskView(self.disk, process, self.loop, crash)

            async def live():
                self.view.crash_in = crash_at_start
                store, _ = open_store(self.view, ROOT, self.options)
                self.view.crash_in = crash_in
                return await work(store)

            task = self.loop.spawn(process, live())
            await asyncio.wait((task, died), return_when=asyncio.FIRST_COMPLETED)
            process.alive = False
            return task.result() if task.done() and not died.done() else None

        return self.loop.run(main(), seconds_max=1e6, steps_max=1_000_000)


async def values(store: LogStore) -> list[bytes]:
    return [value for _, value in await read_values(open_orders(store))]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_names_of_a_new_log_are_durable_before_its_wal_is_let_go(seed: int) -> None:
    machine = Machine(seed)

    async def fill(store: LogStore) -> None:
        log = open_orders(store)
        for number in range(100):
            await append_durably(store, log, b"%d" % number)
        for _ in range(3):
            await store.checkpoint()

    machine.run(fill)
    machine.disk.lose_power()
    assert machine.run(values) == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_recovery_brought_back_survives_a_power_loss(seed: int) -> None:
    """The process dies between write and sync: the entry can be read again, but no disk has it yet."""
    machine = Machine(seed)

    async def one_more(store: LogStore) -> None:
        log = open_orders(store)
        await append_durably(store, log, b"synced")
        machine.view.crash_in = 2
        await append_durably(store, log, b"written")

    machine.run(one_more)
    found = machine.run(values)
    machine.disk.lose_power()
    assert machine.run(values) == found


@pytest.mark.parametrize("seed", SEEDS)
def test_what_recovery_brought_back_survives_also_when_a_sync_had_failed(seed: int) -> None:
    machine = Machine(seed)

    async def fail_one(store: LogStore) -> None:
        log = open_orders(store)
        await append_durably(store, log, b"first")
        machine.disk.sync_failures = 1
        await append_durably(store, log, b"rejected")
        assert log.log_end_offset == 1
        await append_durably(store, log, b"second")
        machine.disk.sync_failures = 1
        await append_durably(store, log, b"rejected too")

    machine.run(fail_one)
    found = machine.run(values)
    assert found[:2] == [b"first", b"second"]
    machine.disk.lose_power()
    assert machine.run(values) == found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("crash_at_start", range(3, 15))
def test_recovery_does_not_rely_on_pages_that_a_failed_sync_left_in_memory(
    seed: int, crash_at_start: int
) -> None:
    """They can be read and count as clean, but no disk has them. There is no checkpoint: if segments had more
    than the WAL, that would look as if it had lost records, and the node would refuse to start."""
    machine = Machine(seed)

    async def fail_one(store: LogStore) -> None:
        log = open_orders(store)
        await append_durably(store, log, b"0")
        for number in range(1, 4):
            append(log, b"%d" % number)
        machine.disk.sync_failures = 1
        await store.wal.drained()
        assert log.log_end_offset == 1, "the round failed"

    machine.run(fail_one)
    machine.run(values, crash_at_start=crash_at_start)
    machine.disk.lose_power()
    found = machine.run(values)
    assert found == [b"%d" % number for number in range(len(found))]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("crash_at_start", range(3, 12))
def test_recovery_cuts_no_file_for_pages_that_a_failed_sync_left_in_memory(
    seed: int, crash_at_start: int
) -> None:
    machine = Machine(seed)
    old_log(machine)

    async def fail_one(store: LogStore) -> None:
        await append_durably(store, open_orders(store), b"a WAL file of its own")
        machine.disk.sync_failures = 1
        drop_from_3(open_orders(store))
        await store.wal.drained()

    machine.run(fail_one)
    machine.run(offsets_and_values, crash_at_start=crash_at_start)
    machine.disk.lose_power()
    assert machine.run(offsets_and_values) in ([*OLD, (5, b"a WAL file of its own")], OLD[:3])


@pytest.mark.parametrize("seed", range(60))
def test_a_torn_round_is_not_taken_for_one_that_was_lost_later(seed: int) -> None:
    """The sequence numbers of a torn round are given out again: nothing may confuse the two."""
    machine = Machine(seed)

    async def torn(store: LogStore) -> None:
        log = open_orders(store)
        await append_durably(store, log, b"first")
        machine.view.crash_in = 1
        for _ in range(5):
            append(log, bytes(600))
        await store.wal.drained()

    async def more(store: LogStore) -> None:
        for number in range(5):
            await append_durably(store, open_orders(store), b"%d" % number)

    machine.run(torn)
    machine.disk.lose_power()
    machine.run(more)
    found = machine.run(values)
    assert found[0] == b"first"
    assert found[-5:] == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("seed", range(40))
def test_a_log_that_was_cut_and_written_to_again_survives(seed: int) -> None:
    """The checkpoint vouches for bytes that have been cut off since; what stands there now may be torn."""
    machine = Machine(seed)

    async def diverge(store: LogStore) -> None:
        log = open_orders(store)
        for number in range(20):
            await append_durably(store, log, b"old %d" % number)
        await store.checkpoint()
        log.truncate(10)
        for number in range(10, 25):
            await append_durably(store, log, b"new %d" % number)
        await store.flusher.flushed()

    machine.run(diverge)
    machine.disk.lose_power()
    expected = [b"old %d" % number for number in range(10)] + [b"new %d" % number for number in range(10, 25)]
    assert machine.run(values) == expected


async def offsets_and_values(store: LogStore) -> list[tuple[int, bytes]]:
    """What the log has, which must be all that it says it has."""
    log = open_orders(store)
    found = await read_values(log)
    assert [offset for offset, _ in found] == list(range(log.log_start_offset, log.log_end_offset))
    return found


def old_log(machine: Machine) -> None:
    """Five records that a checkpoint vouches for."""

    async def fill(store: LogStore) -> None:
        log = open_orders(store)
        for number in range(5):
            await append_durably(store, log, b"old %d" % number)
        await store.checkpoint()

    machine.run(fill)


OLD = [(number, b"old %d" % number) for number in range(5)]


def drop_from_3(log: PartitionLog) -> None:
    log.truncate(3)


def reset_to_9(log: PartitionLog) -> None:
    log.restart_at(9)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("cut", "left"), [(drop_from_3, OLD[:3]), (reset_to_9, [])])
def test_no_file_is_cut_before_the_wal_says_so(
    seed: int, cut: Callable[[PartitionLog], None], left: list[tuple[int, bytes]]
) -> None:
    """The checkpoint vouches for what the cut takes away: without a word in the WAL it has to be there."""
    outcomes = []
    for crash_in in range(1, 9):
        machine = Machine(seed)
        old_log(machine)

        async def begin(store: LogStore) -> None:
            cut(open_orders(store))
            await store.wal.drained()
            await store.disk.run(IoThread.BACKGROUND, lambda: None)

        machine.run(begin, crash_in=crash_in)
        machine.disk.lose_power()
        outcomes.append(machine.run(offsets_and_values))
        assert outcomes[-1] in (OLD, left)
    assert outcomes[-1] == left


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("crash_at_start", range(1, 9))
def test_recovery_cuts_no_file_for_an_entry_that_no_disk_has(seed: int, crash_at_start: int) -> None:
    """The process is killed before the cut is synced, the next one inside its recovery, by a power loss."""
    machine = Machine(seed)
    old_log(machine)

    async def begin(store: LogStore) -> None:
        append(open_orders(store), b"a WAL file of its own")
        await store.wal.drained()
        machine.view.crash_in = 2  # after the write, before the sync
        drop_from_3(open_orders(store))
        await store.wal.drained()

    machine.run(begin)
    machine.run(offsets_and_values, crash_at_start=crash_at_start)
    machine.disk.lose_power()
    assert machine.run(offsets_and_values) in ([*OLD, (5, b"a WAL file of its own")], OLD[:3])


def test_what_a_failed_round_took_back_is_said_again() -> None:
    """Whose log it is, and where it began anew: recovery could not tell from the appends that follow."""
    machine = Machine(1)

    async def begin(store: LogStore) -> None:
        log = open_orders(store)
        machine.disk.sync_failures = 1
        await append_durably(store, log, b"rejected")
        await append_durably(store, log, b"first")

    async def reset_twice(store: LogStore) -> None:
        log = open_orders(store)
        machine.disk.sync_failures = 1
        reset_to_9(log)
        reset_to_9(log)
        await store.wal.drained()
        await append_durably(store, log, b"after")
        await store.flusher.flushed()

    machine.run(begin)
    machine.disk.lose_power()
    assert machine.run(offsets_and_values) == [(0, b"first")]
    machine.run(reset_twice)
    machine.disk.lose_power()
    assert machine.run(offsets_and_values) == [(9, b"after")]


@pytest.mark.parametrize("seed", range(40))
def test_a_checkpoint_counts_nothing_that_segments_lack(seed: int) -> None:
    """The log is truncated, behind all that the checkpoint counts, while the WAL is busy."""
    machine = Machine(seed)

    async def fill(store: LogStore) -> None:
        log = open_orders(store)
        await append_durably(store, log, b"0")
        for number in range(1, 9):
            append(log, b"%d" % number + bytes(700))
        checkpoint = asyncio.ensure_future(store.checkpoint())
        await asyncio.sleep(0)
        for number in range(9, 40):
            append(log, b"%d" % number + bytes(700))
        log.truncate(30)
        machine.disk.slowness = 100.0
        await checkpoint
        assert log.flushed_offset >= 9

    machine.run(fill)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_that_a_failed_round_put_off_takes_nothing_that_was_written_since(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for a place in the file, which belongs to an earlier offset by then."""
    monkeypatch.setattr(wal_queue, "ROUND_BYTES_MAX", 1000)
    machine = Machine(seed, StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=1 << 20)))
    kept = [b"0", *(b"%d" % number + bytes(900) for number in range(1, 6))]

    async def fill(store: LogStore) -> None:
        log = open_orders(store)
        await append_durably(store, log, kept[0])
        await store.flusher.flushed()
        for number in range(1, 6):
            append(log, b"small %d" % number)
        log.truncate(4)
        machine.disk.sync_failures = 1
        await store.wal.drained()
        assert log.log_end_offset == 1, "the round failed, and the cut waits"
        for value in kept[1:]:
            append(log, value)
        append(log, b"gone")
        machine.disk.slowness = 5000.0  # the file is written while the next cut waits, too
        log.truncate(6)
        await store.wal.drained()
        await store.stop()

    machine.run(fill)
    assert machine.run(values) == kept


def test_a_checkpoint_that_is_given_up_does_not_end_the_next_one() -> None:
    machine = Machine(1, StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=1 << 20)))

    async def work(store: LogStore) -> None:
        log = open_orders(store)
        await append_durably(store, log, b"first")
        machine.disk.slowness = 1000.0
        append(log, bytes(30_000))  # too large for a round on the loop
        await asyncio.sleep(0.001)
        append(log, b"second")
        given_up = asyncio.ensure_future(store.checkpoint())
        await asyncio.sleep(0.001)
        given_up.cancel()
        await asyncio.sleep(0.001)
        assert given_up.cancelled()
        assert log.durable_end_offset == 1
        append(log, b"third")
        await store.checkpoint()
        assert log.flushed_offset == 4

    machine.run(work)


def test_a_segment_that_a_failed_round_took_back_leaves_no_file() -> None:
    """An empty file between two segments would hide the records that the first of them has there."""
    machine = Machine(1)

    async def fill(store: LogStore) -> None:
        log = open_orders(store, LogConfig(segment_bytes=200))
        await append_durably(store, log, b"0")
        await store.flusher.flushed()
        for number in range(1, 6):
            append(log, b"%d" % number)
        log.truncate(log.segments[-1].base_offset + 1)
        assert log.segments[-1].base_offset == 4
        machine.disk.sync_failures = 1
        await store.wal.drained()
        assert log.log_end_offset == 1, "the round failed"
        log.config = LogConfig(segment_bytes=500)
        for number in range(1, 9):
            await append_durably(store, log, b"%d" % number)
        assert 4 not in [segment.base_offset for segment in log.segments]
        await store.stop()

    machine.run(fill)
    assert machine.run(values) == [b"%d" % number for number in range(9)]


def test_a_reader_does_not_see_what_was_cut_while_the_file_still_has_it() -> None:
    machine = Machine(1)
    old_log(machine)

    async def diverge(store: LogStore) -> bytes:
        log = open_orders(store)
        await read_values(log)  # the segment is open and known to be sound: it can be read at once
        drop_from_3(log)
        for number in range(3, 8):
            append(log, b"new %d" % number)
        while (found := reading.read_now(log, 0, 1 << 20, log.log_end_offset)) is None:
            pass  # not in the page cache, this time
        return b"".join(found.buffers)

    found = machine.run(diverge)
    assert b"old 2" in found
    assert b"old 3" not in found


def test_a_store_that_may_write_no_checkpoint_leaves_no_task_behind() -> None:
    machine = Machine(1)

    async def fail(store: LogStore) -> int:
        store.start()
        await append_durably(store, open_orders(store), b"value")
        machine.disk.sync_failures = 1
        with pytest.raises(OSError, match="input/output"):
            await store.checkpoint()
        await store.stop()
        return len(machine.processes[-1].live_tasks())

    assert machine.run(fail) == 1, "the test's own"


def test_checkpoints_go_on_where_the_disk_does_not_tell_its_free_space() -> None:
    machine = Machine(1)

    async def work(store: LogStore) -> None:
        def failing(_directory: Path) -> tuple[int, int]:
            raise OSError(errno.EIO, "input/output error")

        machine.view.usage = failing  # type: ignore[method-assign]
        store.start()
        await append_durably(store, open_orders(store), b"value")
        await asyncio.sleep(2 * CHECKPOINT_SECONDS)
        assert store.checkpoint_age() <= 1.5 * CHECKPOINT_SECONDS

    machine.run(work)


def test_failed_rounds_keep_no_file_open() -> None:
    machine = Machine(1)

    async def fail(store: LogStore) -> None:
        log = open_orders(store)
        for free_bytes in (0, 100, None):
            machine.disk.free_bytes = free_bytes
            await append_durably(store, log, bytes(3000))
        machine.disk.sync_failures = 5
        for _ in range(5):
            await append_durably(store, log, bytes(3000))
        try:
            await store.stop()
        except StorageError:
            pytest.fail("a store can be stopped whatever its disk did")

    machine.run(fail)
    assert list(machine.view.open_files.values()) == []
