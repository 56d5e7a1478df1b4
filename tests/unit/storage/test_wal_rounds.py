"""Commit rounds of the WAL, as its files show them."""

from __future__ import annotations

import errno
from pathlib import Path
from uuid import UUID

import pytest

from chronik.model import TopicPartition
from chronik.storage import wal_queue
from chronik.storage.disk import RealFile
from chronik.storage.log import LogConfig
from chronik.storage.store import StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from chronik.storage.wal_format import WalEntryKind, WalScanner, encode_header
from tests.unit.storage.support import DiskSpy, append, append_durably, open_orders, opened, read_values


async def test_each_round_has_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that one queue of appends is cut into: recovery tells damage from a torn end by it."""
    monkeypatch.setattr(wal_queue, "ROUND_BYTES_MAX", 1000)

    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        for number in range(12):
            append(log, bytes([number]) * 200)
        await store.wal.drained()
        assert log.durable_end_offset == 12
        path = store.wal.files[-1].path
        data = path.read_bytes()
        scanner = WalScanner(
            path.name, lambda at, size: data[at : at + size], len(data), -1, is_last_file=True
        )
        numbers = [entry.header.round for entry in scanner.entries()]
        assert (scanner.torn_at, scanner.damage) == (None, [])
        assert numbers == sorted(numbers)
        assert len(set(numbers)) == store.wal.stats.rounds > 3


async def test_a_file_without_entries_does_not_make_damage_look_torn(tmp_path: Path) -> None:
    """The round that opened it failed. What stands behind the damaged entry was acknowledged."""
    small = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=900))
    async with opened(tmp_path, small, crash=True) as (store, _):
        log = open_orders(store)
        for number in range(5):
            append(log, b"value-%d" % number)
        await store.wal.drained()
        await append_durably(store, log, b"value-5")
        full, following = [file.path for file in store.wal.files]
    following.rename(following.with_name("000000000002.wal"))
    following.touch()
    data = bytearray(full.read_bytes())
    data[data.index(b"value-2") + 2] ^= 0x10
    full.write_bytes(data)
    async with opened(tmp_path) as (store, report):
        found = [offset for offset, _ in await read_values(open_orders(store))]
        assert found == [0, 1, 3, 4, 5]
        assert (len(report.damage), report.torn) == (1, [])


@pytest.mark.parametrize("is_clean", [True, False])
async def test_recovery_reads_no_file_again_and_again(tmp_path: Path, is_clean: bool) -> None:
    """Neither those before the checkpoint, nor those that a failing disk left without entries."""
    small = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=20_000))
    async with opened(tmp_path, small, crash=not is_clean) as (store, _):
        log = open_orders(store)
        for _ in range(12):
            await append_durably(store, log, bytes(15_000))
        paths = [file.path for file in store.wal.files]
    if not is_clean:
        for path in paths[1:-1]:
            path.write_bytes(bytes(20_000))
    async with opened(tmp_path, disk_type=DiskSpy, crash=True) as (store, report):
        assert isinstance(store.disk, DiskSpy)
        assert (report.entries == 0) == is_clean
        assert max(store.disk.read_bytes[path] for path in paths) < 4 * 20_000


async def test_what_a_failed_round_left_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its pages may be on the disk and others not. Nobody was told that it succeeded."""
    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        await append_durably(store, log, b"first")

        def bad_sync(_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(RealFile, "sync", bad_sync)
            for number in range(4):
                append(log, b"rejected %d" % number)
            await store.wal.drained()
        other = store.open_log(TopicPartition("other", 0), UUID(int=78), LogConfig())
        await append_durably(store, other, b"later")
        failed, _ = [file.path for file in store.wal.files]
    data = bytearray(failed.read_bytes())
    data[data.index(b"rejected 1") + 2] ^= 0x10
    failed.write_bytes(data)
    async with opened(tmp_path) as (store, report):
        log = open_orders(store)
        assert log.log_end_offset == len(await read_values(log)) == 2
        assert (report.damage, report.gaps) == ([], [])
        assert len(report.torn) == 1


def test_looking_for_a_later_round_reads_each_place_once() -> None:
    """16 MB of small entries may share a number; a chunk read for each of them would take half a minute."""
    payload = bytes(60)
    data = bytearray()
    for number in range(3_000):
        header = encode_header(WalEntryKind.APPEND, number + 1, 5, bytes(16), 0, number, payload)
        data += header + payload
    lost = 10 * (len(data) // 3_000)
    data[lost : lost + 4] = bytes(4)
    read_bytes = 0

    def read_at(position: int, size: int) -> bytes:
        nonlocal read_bytes
        found = bytes(data[position : position + size])
        read_bytes += len(found)
        return found

    scanner = WalScanner("", read_at, len(data), -1, is_last_file=True)
    assert len(list(scanner.entries())) == 10
    assert scanner.torn_at == lost
    assert read_bytes < 5 * len(data)
