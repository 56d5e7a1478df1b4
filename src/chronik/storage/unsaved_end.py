"""Puts the end of a WAL file on disk, which recovery can read though no disk may have it.

After a failed sync the kernel takes the pages for clean and keeps them: another process reads them, and its
sync of the file saves nothing. If recovery relied on them, segments could get ahead of the WAL, or be cut for
an entry that is gone after a power loss. So it writes them again, which makes them dirty, and syncs.

Only the rounds with a file's last number can be of this kind, and only if the next file does not begin with a
higher one (`wal_format`).
"""

from __future__ import annotations

from typing import Final

from chronik.storage.disk import File
from chronik.storage.wal_format import WalScanner

_CHUNK_BYTES: Final = 1024 * 1024


def save_end(file: File, after_sequence: int) -> None:
    """Blocking: write the rounds with the file's last number again, and sync.

    The file's entries have higher sequence numbers than `after_sequence`.
    """
    scanner = WalScanner("", file.read_at, file.size(), after_sequence, is_last_file=True)
    position, number = 0, -1
    for entry in scanner.entries(lambda _: False):
        if entry.header.round != number:
            position, number = entry.file_position, entry.header.round
    while position < scanner.end_position:
        chunk = file.read_at(position, min(_CHUNK_BYTES, scanner.end_position - position))
        if not chunk:
            break
        file.write_at(position, [chunk])
        position += len(chunk)
    file.sync()
