"""Open a store on a real directory inside a test."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NoReturn
from uuid import UUID

from chronik.model import TopicPartition
from chronik.private_files import FILE_MODE
from chronik.records.batch import Buffer, check_batch
from chronik.records.reader import Record, read_all_records
from chronik.records.writer import build_batch
from chronik.storage import reading
from chronik.storage.disk import RealDisk, RealFile
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.recovery import RecoveryReport, open_store
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions

TP = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=77)
OPTIONS = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=1 << 20))


class DiskSpy(RealDisk):
    """Notes what is synced, written and read, by file."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.syncs: list[Path] = []
        self.written: list[tuple[Path, Buffer]] = []
        self.read_bytes: Counter[Path] = Counter()

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        file = _SpiedFile(path, os.open(path, flags, FILE_MODE))
        file.spy = self
        return file

    @property
    def wal_syncs(self) -> int:
        """Syncs of the WAL's files, whatever they were called when they were opened."""
        return sum(path.suffix == ".wal" for path in self.syncs)


class _SpiedFile(RealFile):
    __slots__ = ("spy",)

    spy: DiskSpy

    def sync(self) -> None:
        self.spy.syncs.append(self._path)
        super().sync()

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        self.spy.written += ((self._path, buffer) for buffer in buffers)
        return super().write_at(position, buffers)

    def read_at(self, position: int, size: int) -> bytes:
        data = super().read_at(position, size)
        self.spy.read_bytes[self._path] += len(data)
        return data

    def read_cached(self, position: int, size: int) -> bytes | None:
        data = super().read_cached(position, size)
        self.spy.read_bytes[self._path] += len(data or b"")
        return data


@contextlib.asynccontextmanager
async def opened(
    root: Path,
    options: StoreOptions = OPTIONS,
    *,
    crash: bool = False,
    disk_type: type[RealDisk] = RealDisk,
) -> AsyncIterator[tuple[LogStore, RecoveryReport]]:
    """A store; with `crash` it is dropped at the end as kill -9 would: nothing is flushed or closed."""
    disk = disk_type(asyncio.get_running_loop())
    store, report = open_store(disk, root, options)
    try:
        yield store, report
        if not crash:
            await store.stop()
    finally:
        store.flusher.close()  # its timer must not write into what the next store has opened
        disk.close()


def open_orders(store: LogStore, config: LogConfig | None = None) -> PartitionLog:
    return store.open_log(TP, TOPIC_ID, config or LogConfig())


def append(log: PartitionLog, *values: bytes, epoch: int = 0, timestamp_ms: int = 1000) -> int:
    batch = build_batch([Record(key=None, value=value, timestamp_ms=timestamp_ms) for value in values])
    return log.append(memoryview(batch), check_batch(batch), epoch, now_ms=timestamp_ms)


async def append_durably(store: LogStore, log: PartitionLog, *values: bytes, **how: int) -> int:
    base = append(log, *values, **how)
    await store.wal.drained()
    return base


async def read_values(log: PartitionLog, offset: int | None = None) -> list[tuple[int, bytes]]:
    """All records from `offset` on, fetched in small steps as a consumer would."""
    offset = log.log_start_offset if offset is None else offset
    out: list[tuple[int, bytes]] = []
    while offset < log.log_end_offset:
        found = await reading.read(log, offset, 10_000, log.log_end_offset)
        records = [r for r in read_all_records(b"".join(found.buffers)) if r.offset >= offset]
        if not records:
            break
        out += [(r.offset, r.value or b"") for r in records]
        offset = records[-1].offset + 1
    return out


def too_many_files(*_: object) -> NoReturn:
    """In the place of a disk's method that opens files."""
    raise OSError(errno.EMFILE, "too many open files")
