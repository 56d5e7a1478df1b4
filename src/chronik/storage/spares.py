"""The files that the WAL goes on in, ready before it needs them.

Files that are no longer needed come back: the file system knows all of their blocks as used, so that a sync
has nothing to tell its journal, which makes it twice as quick. What they hold is older than every
checkpoint; its sequence numbers say so to whoever reads the file before all of it is overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from chronik.storage.disk import Disk, File, Lane

log = logging.getLogger(__name__)

USED_MAX: Final = 4
"""What a checkpoint lets go in bulk loads, and thus what is needed until the next one."""
_AHEAD_NAME: Final = "spare.wal"
_NOW_NAME: Final = "next.wal"
"""Made while one is being prepared in another lane."""
_USED_PREFIX: Final = "spare-"


class Spare(NamedTuple):
    file: File
    path: Path
    is_used: bool
    """All of its bytes have been written before."""


def left_over(disk: Disk, directory: Path, file_bytes: int, *, keep: bool) -> list[Path]:
    """Files that were kept for later by the process before this one; others of its kind are removed."""
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
        """Have a file ready soon: to make one takes milliseconds for which no round should wait."""
        if self._ready is not None or self._is_requested or self._is_closed:
            return
        self._is_requested = True
        self._disk.submit(Lane.BACKGROUND, lambda: self._make(_AHEAD_NAME), self._made)

    def keep(self, paths: Iterable[Path], *, is_room: bool) -> None:
        """Blocking: take files that nobody needs any more, and remove those that are too many."""
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
        if self._is_requested:  # its lane is served in order: when this is done, so is the spare
            await self._disk.run(Lane.BACKGROUND, lambda: None)
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
