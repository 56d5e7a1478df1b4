"""The file that the WAL writes to: where the next round goes, and the next file when it is full.

`write` blocks; one round is written at a time, and nobody else touches the file or its number meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from chronik.records.batch import Buffer
from chronik.storage.disk import Disk, File, IoThread
from chronik.storage.spares import Spares

ZEROED_SHARE: Final = 128
"""Share of the file (1/128) that a small round fills with zeros behind itself when it has used up the last
zeros. Later rounds overwrite written blocks, so their sync does not wait for the file system's journal."""
ZEROED_BYTES_MAX: Final = 512 * 1024
_PAGE: Final = memoryview(bytes(4096))


@dataclass(slots=True)
class WalFile:
    path: Path
    number: int
    first_sequence: int


def wal_file_name(number: int) -> str:
    return f"{number:012d}.wal"


class WalWriter:
    def __init__(
        self, disk: Disk, directory: Path, file_bytes: int, files: Sequence[WalFile], spares: Sequence[Path]
    ) -> None:
        """`files` are those that recovery found; writing goes on in another one behind them."""
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self.files: list[WalFile] = list(files)
        self.file: File | None = None
        """What the next round is written to; None before the first round and after a failed one."""
        self._number = files[-1].number if files else -1
        self._position = 0
        self.room_bytes = inf
        """What still goes into the file; without limit while there is none."""
        self.is_half_full = False
        self._zeros = memoryview(bytes(min(file_bytes // ZEROED_SHARE, ZEROED_BYTES_MAX)))
        self._zeroed_end = 0
        self._is_used = False
        self.spares = Spares(disk, directory, file_bytes, spares)

    def write(
        self,
        buffers: list[Buffer],
        size: int,
        first_sequence: int,
        *,
        zero_ahead: bool,
        is_synced: bool,
    ) -> int:
        """Blocking: write a round, and sync it if `is_synced`. Returns its size."""
        is_fresh = self.file is None
        file = self._open(first_sequence) if self.file is None else self.file
        try:
            end = self._position + size
            if zero_ahead and end > self._zeroed_end:
                zeros = self._zeros[: max(self._file_bytes - end, 0)]
                buffers.append(zeros)
                self._zeroed_end = end + len(zeros)
            elif self._is_used:
                # Overwrite whole pages, or the kernel would have to read the old ones first.
                buffers.append(_PAGE[: min(-end % len(_PAGE), max(self._file_bytes - end, 0))])
            file.write_at(self._position, buffers)
            if is_synced:
                file.sync()
        except BaseException:
            if is_fresh:  # nobody else knows of it yet
                file.close()
            raise
        self.file = file
        self._position = end
        self.room_bytes = self._file_bytes - end
        self.is_half_full = end > self._file_bytes // 2
        return size

    def _open(self, first_sequence: int) -> File:
        number = self._number + 1
        path = self._directory / wal_file_name(number)
        spare = self.spares.take()
        try:
            self._disk.rename(spare.path, path)
            self._disk.sync_directory(self._directory)
        except BaseException:
            spare.file.close()
            raise
        self._number = number
        self._position = 0
        self._is_used = spare.is_used
        self._zeroed_end = self._file_bytes if spare.is_used else 0
        self.files.append(WalFile(path, number, first_sequence))
        return spare.file

    def give_up(self) -> File | None:
        """The file is full, or what stands in it is unknown: the next round begins another one."""
        file, self.file = self.file, None
        self.room_bytes = inf
        return file

    # --- retiring ----------------------------------------------------------------------------------

    def removable(self, before_sequence: int) -> list[WalFile]:
        """Files all of whose entries precede `before_sequence`; the one being written is never among them."""
        out = []
        for file, following in zip(self.files, self.files[1:], strict=False):
            if following.first_sequence <= before_sequence:
                out.append(file)
        return out

    async def release(self, gone: Sequence[WalFile], *, is_room: bool) -> None:
        """Give up files that no checkpoint needs. They are kept as spares if `is_room`, else removed."""
        paths = [file.path for file in gone]
        await self._disk.run(IoThread.BACKGROUND, lambda: self.spares.keep(paths, is_room=is_room))
        for file in gone:  # in place: the I/O thread may be adding one
            self.files.remove(file)

    def close(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):
                self.file.close()
        self.file = None
