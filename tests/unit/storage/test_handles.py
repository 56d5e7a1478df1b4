"""Segment files that are open: never more than allowed, and nothing is lost with one that was closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from chronik.model import TopicPartition
from chronik.storage.disk import RealDisk, RealFile
from chronik.storage.handles import CHANCES_MAX, Handles
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.recovery import open_store
from chronik.storage.segment import Segment
from chronik.storage.store import LogStore
from tests.unit.storage.support import OPTIONS, append_durably, read_values

LOGS = 6


class Holder:
    def __init__(self) -> None:
        self.was_used = False
        self.is_open = True

    def let_go(self) -> None:
        self.is_open = False


def test_what_was_used_since_the_last_round_stays() -> None:
    handles = Handles(3)
    holders = [Holder() for _ in range(5)]
    for one in holders[:3]:
        handles.opened(one)
    holders[0].was_used = True
    for one in holders[3:]:
        handles.opened(one)
    assert [one.is_open for one in holders] == [True, False, False, True, True]
    assert (len(handles), handles.evicted) == (3, 2)
    handles.forget(holders[0])
    assert len(handles) == 2


def test_one_file_is_closed_soon_even_if_all_were_used() -> None:
    handles = Handles(10 * CHANCES_MAX)
    holders = [Holder() for _ in range(handles.limit + 1)]
    for one in holders:
        one.was_used = True
        handles.opened(one)
    assert sum(not one.was_used for one in holders) <= CHANCES_MAX
    assert (len(handles), handles.evicted) == (handles.limit, 1)


def opened_logs(store: LogStore) -> list[PartitionLog]:
    return [
        store.open_log(TopicPartition("orders", number), UUID(int=77), LogConfig()) for number in range(LOGS)
    ]


async def test_every_segment_is_written_synced_and_read_with_two_handles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    sync = RealFile.sync

    def noted(file: RealFile) -> None:
        synced.add(str(file._path))
        sync(file)

    disk = RealDisk(asyncio.get_running_loop(), 2)
    store, _ = open_store(disk, tmp_path, OPTIONS)
    logs = opened_logs(store)
    for number, log in enumerate(logs):
        await append_durably(store, log, b"%d" % number)
    await store.flusher.flushed()
    assert len(disk.handles) == 2
    monkeypatch.setattr(RealFile, "sync", noted)
    await store.checkpoint()
    assert {str(log.segments[0].path) for log in logs} <= synced, "closed files too: the WAL may go now"
    assert not any(log.segments[0].is_unsynced for log in logs)
    await store.stop()
    assert len(disk.handles) == 0
    disk.close()

    disk = RealDisk(asyncio.get_running_loop(), 2)
    store, _ = open_store(disk, tmp_path, OPTIONS)
    for number, log in enumerate(opened_logs(store)):
        assert await read_values(log) == [(0, b"%d" % number)]
    assert (len(disk.handles), disk.handles.evicted) == (2, LOGS - 2)
    await store.stop()
    disk.close()


async def test_a_file_whose_path_another_one_takes_stays_open(tmp_path: Path) -> None:
    disk = RealDisk(asyncio.get_running_loop(), 1)
    old, other = (Segment.create(disk, tmp_path, offset, index_interval_bytes=4096) for offset in (0, 9))
    old.write(0, [b"old"])
    old.keep_open()
    disk.rename(old.path, tmp_path / "elsewhere")
    (tmp_path / "new").write_bytes(b"new")
    disk.rename(tmp_path / "new", old.path)
    for segment in (other, Segment.create(disk, tmp_path, 99, index_interval_bytes=4096)):
        segment.write(0, [b"other"])
    assert old.file.read_at(0, 3) == b"old"
    disk.close()
