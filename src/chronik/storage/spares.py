"""Spare WAL files, prepared before the WAL needs them.

WAL files that are no longer needed are used again. Their blocks are already allocated and written, so a sync
does not touch the file system's journal and is twice as quick. Old entries in such a file have sequence
numbers from before every checkpoint; by these a scanner recognizes them until they are overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from chronik.storage.disk import Disk, File, IoThread

log = logging.getLogger(__name__)

USED_MAX: Final = 4
"""Used files to keep. Under bulk load a checkpoint releases this many, and the WAL needs as many until the
next one."""
_AHEAD_NAME: Final = "spare.wal"
_NOW_NAME: Final = "next.wal"
"""Name of a file made on demand. It differs, since another I/O thread may be preparing `spare.wal`."""
_USED_PREFIX: Final = "spare-"


class Spare(NamedTuple):
    file: File
    path: Path
    is_used: bool
    """All of its bytes have been written before."""


def left_over(disk: Disk, directory: Path, file_bytes: int, *, keep: bool) -> list[Path]:
    """Used WAL files that the previous process kept. Removes those of another size, or all if not `keep`."""
    found = []
    for name in disk.list(directory):
        if name.startswith(_USED_PREFIX):
            path = directory / name
            if keep and disk.size(path) == file_bytes:
                found.append(path)
            else:
                disk.remove(path)
    return found


class Spares:
    def __init__(self, disk: Disk, directory: Path, file_bytes: int, used: Sequence[Path]) -> None:
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._used = list(used)
        self._ready: Spare | None = None
        self._is_requested = False
        self._is_closed = False

    def take(self) -> Spare:
        """Blocking: the file that is ready, or one that has to be made ready now."""
        spare, self._ready = self._ready, None
        return spare or self._make(_NOW_NAME)

    def request(self) -> None:
        """Prepare a file in the background. It takes milliseconds, for which no commit round should wait."""
        if self._ready is not None or self._is_requested or self._is_closed:
            return
        self._is_requested = True
        self._disk.submit(IoThread.BACKGROUND, lambda: self._make(_AHEAD_NAME), self._made)

    def keep(self, paths: Iterable[Path], *, is_room: bool) -> None:
        """Blocking: keep up to `USED_MAX` of these WAL files for later and remove the rest."""
        if not is_room:
            paths = [*paths, *self._used]
            self._used = []
        for path in paths:
            if is_room and len(self._used) < USED_MAX and self._disk.size(path) == self._file_bytes:
                kept = path.with_name(_USED_PREFIX + path.name)
                self._disk.rename(path, kept)
                self._used.append(kept)
            else:
                self._disk.remove(path)

    async def close(self) -> None:
        self._is_closed = True
        if self._is_requested:  # its I/O thread is served in order: when this is done, so is the spare
            await self._disk.run(IoThread.BACKGROUND, lambda: None)
        if self._ready is not None:
            self._ready.file.close()
            self._ready = None

    def _make(self, fresh_name: str) -> Spare:
        if self._used:
            path = self._used.pop()
            return Spare(self._disk.open(path), path, is_used=True)
        path = self._directory / fresh_name
        self._disk.remove(path)
        file = self._disk.open(path, create=True)
        try:
            file.preallocate(self._file_bytes)
            file.sync()
        except BaseException:
            file.close()
            raise
        return Spare(file, path, is_used=False)

    def _made(self, spare: Spare | None, error: BaseException | None) -> None:
        self._is_requested = False
        if spare is None:
            log.warning("the next WAL file cannot be prepared: %s", error)
        elif self._is_closed:
            spare.file.close()
        else:
            self._ready = spare
