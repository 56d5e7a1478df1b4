"""Puts a compacted segment in the place of the ones it was made from, whenever the process may die.

    1. `<base>.log.cleaned`, `.index.cleaned`, `.timeindex.cleaned` are written and synced
    2. an empty file `<base>-<end>.swap` is made: from here on the change will be carried out
    3. the cleaned files take their names; files of the segments behind `base` and before `end` are removed
    4. the `.swap` file is removed

The directory is synced after each step. Opening the directory (`settle`) finds one of two cases: a
`.swap` file, then steps 3 and 4 are done again, which changes nothing if they were done before; or none, then
files that end in `.cleaned` are of no use and go. Without any batch left, `.swap` is called `.drop`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chronik.records.batch import BatchHeader, Buffer
from chronik.storage.disk import Disk, File
from chronik.storage.segment import Segment, segment_name

_CLEANED: Final = ".cleaned"
_SWAP: Final = ".swap"
_DROP: Final = ".drop"
_SUFFIXES: Final = (".index", ".timeindex", ".log")
"""The log comes last: a segment without an index can be read, an index alone means nothing."""
_WRITE_BYTES: Final = 256 * 1024
_SYNC_BYTES: Final = 2 * 1024 * 1024


def settle(disk: Disk, directory: Path) -> None:
    """Blocking, when a log is loaded: finish or forget what a stopped process was about to do."""
    names = disk.list(directory)
    for name in names:
        if name.endswith((_SWAP, _DROP)):
            base, end = name.rsplit(".", 1)[0].split("-")
            _carry_out(disk, directory, int(base), int(end), directory / name)
    for name in names:
        if name.endswith(_CLEANED):
            disk.remove(directory / name)


def _carry_out(disk: Disk, directory: Path, base: int, end: int, mark: Path) -> None:
    first_to_remove = base if mark.suffix == _DROP else base + 1
    for suffix in _SUFFIXES:
        cleaned = directory / (segment_name(base, suffix) + _CLEANED)
        if disk.exists(cleaned):
            disk.rename(cleaned, directory / segment_name(base, suffix))
    for name in disk.list(directory):
        stem, _, suffix = name.partition(".")
        if stem.isdigit() and f".{suffix}" in _SUFFIXES and first_to_remove <= int(stem) < end:
            disk.remove(directory / name)
    disk.sync_directory(directory)
    disk.remove(mark)
    disk.sync_directory(directory)


class CleanedSegment:
    """The files of a compacted segment while they are being written. Everything here blocks."""

    def __init__(self, disk: Disk, directory: Path, base_offset: int, *, index_interval_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        # Never written through: it keeps the accounts of sizes, timestamps and index entries.
        self._accounts = Segment.create(
            disk, directory, base_offset, index_interval_bytes=index_interval_bytes
        )
        self._file: File | None = None
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._written = 0
        self._synced = 0

    @property
    def size_bytes(self) -> int:
        return self._accounts.size_bytes

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        self._accounts.note_append(header, header.last_offset, len(batch))
        self._pending.append(batch)
        self._pending_bytes += len(batch)
        if self._pending_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = self._create(".log")
        self._written += self._file.write_at(self._written, self._pending)
        self._pending, self._pending_bytes = [], 0
        if self._written - self._synced >= _SYNC_BYTES:
            # Little by little: one large sync at the end would hold up the WAL's.
            self._file.sync()
            self._synced = self._written

    def _create(self, suffix: str) -> File:
        path = self._directory / (segment_name(self._accounts.base_offset, suffix) + _CLEANED)
        self._disk.remove(path)
        return self._disk.open(path, create=True)

    def finish(self) -> None:
        """Everything is added: make it durable under its makeshift names."""
        accounts = self._accounts
        if accounts.size_bytes == 0:
            return
        self._write()
        assert self._file is not None
        self._file.sync()
        self._close()
        if accounts.max_timestamp >= 0:
            accounts.time_index.add(accounts.max_timestamp, accounts.max_timestamp_offset)
        for suffix, data in (
            (".index", accounts.offset_index.encode()),
            (".timeindex", accounts.time_index.encode()),
        ):
            file = self._create(suffix)
            try:
                file.write_at(0, [data])
                file.sync()
            finally:
                file.close()

    def swap(self, end_offset: int) -> Segment | None:
        """Take the place of all segments from the base offset up to `end_offset`; None if nothing is left."""
        disk, directory, base = self._disk, self._directory, self._accounts.base_offset
        kind = _SWAP if self.size_bytes else _DROP
        mark = directory / f"{base:020d}-{end_offset:020d}{kind}"
        disk.sync_directory(directory)
        disk.open(mark, create=True).close()
        disk.sync_directory(directory)
        _carry_out(disk, directory, base, end_offset, mark)
        if kind == _DROP:
            return None
        segment = Segment.load(
            disk, directory, base, index_interval_bytes=self._accounts.index_interval_bytes
        )
        segment.note_sound(segment.written_bytes)
        segment.note_max_timestamp(self._accounts.max_timestamp, self._accounts.max_timestamp_offset)
        return segment

    def discard(self) -> None:
        self._close()
        for suffix in _SUFFIXES:
            self._disk.remove(self._directory / (segment_name(self._accounts.base_offset, suffix) + _CLEANED))

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
