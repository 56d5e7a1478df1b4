"""A place for compiled code that nobody but this user can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def private_directory(parent: Path) -> Path | None:
    """A directory for code that only this user can write; None if there cannot be one.

    What lies there is run as it is found, so a directory that somebody else made or may write to is not used.
    """
    directory = parent / f"chronik-compiled-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return directory if ours else None
