"""A directory whose checkpoints are gone: recovery starts only if the WAL has all there ever was (L02)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chronik.model import StorageError
from chronik.storage import checkpoint
from chronik.storage.cleanable import FILE_NAME as CLEANER_POSITION
from chronik.storage.cleanable import CleanedPosition, save_position
from chronik.storage.lost_checkpoint import SNAPSHOT_PREFIX
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from chronik.storage.wal_format import WalEntryKind
from tests.unit.storage.support import append_durably, open_orders, opened, read_values
from tests.unit.storage.test_power_loss import ROOT, Machine, values

SMALL = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=4096))
LARGE = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=1 << 20))
COUNT = 60
RECORDS = [(number, b"%03d" % number + bytes(300)) for number in range(COUNT)]
CHECKPOINTS = (checkpoint.FILE_NAME, checkpoint.FORMER_NAME)


async def write(root: Path, options: StoreOptions, *, checkpoints: int, crash: bool = True) -> None:
    async with opened(root, options, crash=crash) as (store, _):
        log = open_orders(store)
        for number, value in RECORDS:
            await append_durably(store, log, value)
            if checkpoints and number and number % (COUNT // (checkpoints + 1)) == 0:
                await store.checkpoint()
        await store.flusher.flushed()


def lose_checkpoints(root: Path) -> None:
    for name in CHECKPOINTS:
        (root / name).unlink(missing_ok=True)


def damage_checkpoints(root: Path) -> None:
    for name in CHECKPOINTS:
        (root / name).write_bytes(b"bit rot")


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def check_refused(root: Path, why: str) -> None:
    before = contents(root)
    with pytest.raises(StorageError, match=why) as refused:
        async with opened(root, SMALL) as (store, _):
            await read_values(open_orders(store))
    assert contents(root) == before, "a start that is refused changes nothing"
    assert "chronik verify --repair" in str(refused.value)
    assert "let the replicas copy" in str(refused.value)


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (lose_checkpoints, "its checkpoints are missing, and so are WAL files"),
        (damage_checkpoints, "no checkpoint can be read"),
    ],
)
async def test_without_a_checkpoint_and_the_start_of_the_wal_a_node_does_not_start(
    tmp_path: Path, lose: Callable[[Path], None], why: str, crash: bool
) -> None:
    await write(tmp_path, SMALL, checkpoints=3, crash=crash)
    assert not (tmp_path / "wal" / "000000000000.wal").exists()
    lose(tmp_path)
    await check_refused(tmp_path, why)


@pytest.mark.parametrize("lost", CHECKPOINTS)
async def test_one_checkpoint_is_enough(tmp_path: Path, lost: str) -> None:
    await write(tmp_path, SMALL, checkpoints=3)
    (tmp_path / lost).unlink()
    async with opened(tmp_path, SMALL) as (store, _):
        assert await read_values(open_orders(store)) == RECORDS


async def test_a_node_that_lost_its_wal_as_well_does_not_start(tmp_path: Path) -> None:
    await write(tmp_path, SMALL, checkpoints=3)
    lose_checkpoints(tmp_path)
    shutil.rmtree(tmp_path / "wal")
    (tmp_path / "wal").mkdir()
    await check_refused(tmp_path, "its checkpoints and its WAL are missing")


async def test_a_snapshot_alone_does_not_make_a_new_node(tmp_path: Path) -> None:
    """It would have forgotten whom it voted for."""
    for name in ("wal", "topics"):
        (tmp_path / name).mkdir()
    (tmp_path / f"{SNAPSHOT_PREFIX}{5:020d}").write_bytes(b"state")
    await check_refused(tmp_path, "its checkpoints and its WAL are missing")


async def test_a_hole_in_the_wal_is_noticed(tmp_path: Path) -> None:
    await write(tmp_path, SMALL, checkpoints=0)
    (tmp_path / "wal" / "000000000002.wal").unlink()
    await check_refused(tmp_path, "so are WAL files before 000000000003.wal")


async def test_segments_that_are_ahead_of_the_wal_are_noticed(tmp_path: Path) -> None:
    await write(tmp_path, SMALL, checkpoints=0)
    max((tmp_path / "wal").glob("0*.wal")).unlink()
    await check_refused(tmp_path, "its WAL lacks records of .*orders-0")


async def test_a_log_that_the_wal_does_not_know_is_noticed(tmp_path: Path) -> None:
    await write(tmp_path, SMALL, checkpoints=0)
    shutil.copytree(tmp_path / "topics" / "orders-0", tmp_path / "topics" / "others-0")
    await check_refused(tmp_path, "its WAL lacks records of .*others-0")


@pytest.mark.parametrize("checkpoints", [0, 2])
@pytest.mark.parametrize("crash", [True, False])
async def test_a_wal_that_is_there_from_its_start_needs_no_checkpoint(
    tmp_path: Path, checkpoints: int, crash: bool
) -> None:
    await write(tmp_path, LARGE, checkpoints=checkpoints, crash=crash)
    lose_checkpoints(tmp_path)
    async with opened(tmp_path, LARGE) as (store, report):
        assert await read_values(open_orders(store)) == RECORDS
        assert not report.gaps


async def test_a_log_that_was_cut_and_emptied_since_is_not_taken_for_lost(tmp_path: Path) -> None:
    async with opened(tmp_path, LARGE, crash=True) as (store, _):
        log = open_orders(store)
        for _, value in RECORDS:
            await append_durably(store, log, value)
        await store.flusher.flushed()
        store.wal.append(WalEntryKind.TRUNCATE, log.topic_id_bytes, 0, 20, b"", _Ignored(), 0)
        await store.wal.drained()
    async with opened(tmp_path, LARGE) as (store, _):
        assert await read_values(open_orders(store)) == RECORDS[:20]


class _Ignored:
    def committed(self, token: int) -> None:
        pass

    def rejected(self, token: int, error: StorageError) -> None:
        raise error


async def test_what_the_wal_brings_back_counts_as_not_compacted(tmp_path: Path) -> None:
    """A tombstone and the record before it are both back: neither may stay when the other one goes."""
    await write(tmp_path, LARGE, checkpoints=2)
    async with opened(tmp_path, LARGE) as (store, _):
        log = open_orders(store)
        save_position(store.disk, log.directory, CleanedPosition(first_dirty_offset=COUNT))
    lose_checkpoints(tmp_path)
    async with opened(tmp_path, LARGE) as (store, _):
        assert await read_values(open_orders(store)) == RECORDS
    assert not (tmp_path / "topics" / "orders-0" / CLEANER_POSITION).exists()


@pytest.mark.parametrize("moment", range(1, 25))
def test_the_checkpoint_that_serves_is_kept_until_another_one_is_there(moment: int) -> None:
    """The newer one is damaged, and the node dies at some moment of the recovery from the former one."""
    machine = Machine(moment, SMALL)

    async def fill(store: LogStore) -> None:
        log = open_orders(store)
        for number, value in RECORDS:
            await append_durably(store, log, value)
            if number in (20, 40):
                await store.checkpoint()
        file = machine.view.open(ROOT / checkpoint.FILE_NAME)
        file.write_at(10, [b"bit rot"])
        file.sync()

    async def nothing(store: LogStore) -> None:
        pass

    machine.run(fill)
    machine.run(nothing, crash_at_start=moment)
    machine.disk.lose_power()
    assert machine.run(values) == [value for _, value in RECORDS]
