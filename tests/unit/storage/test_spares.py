"""WAL files that serve again: what they held before never comes back, whenever the power goes."""

from __future__ import annotations

import pytest

from chronik.storage.spares import USED_MAX
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from tests.unit.storage.support import append_durably, open_orders
from tests.unit.storage.test_power_loss import OPTIONS, ROOT, SEEDS, Machine, values

WAL = ROOT / "wal"


def kept(store: LogStore) -> list[str]:
    return [name for name in store.disk.list(WAL) if name.startswith("spare-")]


async def look(store: LogStore) -> list[str]:
    return kept(store)


async def write(store: LogStore, first: int, count: int) -> None:
    log = open_orders(store)
    for number in range(first, first + count):
        await append_durably(store, log, b"%d" % number)


async def write_and_let_go(store: LogStore, first: int = 0, count: int = 100) -> None:
    """Two checkpoints later nobody needs the files in which these stood."""
    await write(store, first, count)
    for _ in range(3):
        await store.checkpoint()


def test_files_that_nobody_needs_are_kept_and_used_again() -> None:
    machine = Machine(1)

    async def fill_twice(store: LogStore) -> None:
        await write_and_let_go(store, 0, 400)
        before = kept(store)
        assert len(before) == USED_MAX, "no more, though more were let go"
        await write(store, 400, 60)
        assert len(kept(store)) < USED_MAX
        assert {int(name[len("spare-") : -len(".wal")]) for name in before}.isdisjoint(
            file.number for file in store.wal.files
        ), "a file that serves again has a number of its own"

    machine.run(fill_twice)
    assert machine.run(values) == [b"%d" % number for number in range(460)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_file_that_is_used_again_shows_nothing_of_its_former_life(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(seed, StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=16_384)))

    async def fill(store: LogStore) -> None:
        for first in (100, 200, 300):
            await write_and_let_go(store, first)

    async def some_more(store: LogStore) -> None:
        await write(store, 400, 20 + seed)
        machine.view.crash_in = seed
        await write(store, 420 + seed, 50)

    machine.run(fill)
    machine.run(some_more)
    machine.disk.lose_power()
    found = machine.run(values)
    assert found == [b"%d" % number for number in range(100, 100 + len(found))]
    assert len(found) >= 320 + seed
    assert "the disk lost" not in caplog.text, "nothing was lost that had been acknowledged"


def test_files_are_kept_over_a_restart_and_go_if_files_have_another_size_now() -> None:
    machine = Machine(1)
    machine.run(write_and_let_go)
    before = machine.run(look)
    assert len(before) > 1

    async def shorten(store: LogStore) -> None:
        file = store.disk.open(WAL / before[0])
        file.truncate(OPTIONS.wal.file_bytes // 2)
        file.close()

    machine.run(shorten)
    assert machine.run(look) == before[1:]


def test_a_disk_that_is_nearly_full_keeps_none() -> None:
    machine = Machine(1)

    async def fill_the_disk(store: LogStore) -> None:
        await write_and_let_go(store)
        assert kept(store)
        machine.disk.free_bytes = 5 * OPTIONS.wal.file_bytes
        await write_and_let_go(store, 100, 40)
        assert len(kept(store)) <= 1, "only the next one, which is open already"

    async def fill_more(store: LogStore) -> None:
        machine.disk.free_bytes = None
        await write_and_let_go(store, 140)
        assert kept(store)

    machine.run(fill_the_disk)
    machine.run(fill_more)
    machine.disk.free_bytes = 5 * OPTIONS.wal.file_bytes
    assert machine.run(look) == []
    assert machine.run(values) == [b"%d" % number for number in range(240)]
