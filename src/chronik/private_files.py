"""Files that only their owner may read: everything a node keeps, whatever the umask of who starts it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Final

__all__ = ["DIRECTORY_MODE", "FILE_MODE", "make_private", "open_private", "tighten"]

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_private(directory: Path) -> None:
    """Make a directory, and those above it that are missing, for the owner alone."""
    if not directory.is_dir():
        if not directory.parent.is_dir():
            make_private(directory.parent)
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Like `path.open(mode)` for "wb" and "ab". Others cannot read the file, even if they could before."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if mode == "ab" else 0)
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        with contextlib.suppress(PermissionError):  # another's file, which this user may only write to
            os.fchmod(descriptor, FILE_MODE)
        if mode == "wb":
            os.ftruncate(descriptor, 0)
        return os.fdopen(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise


def tighten(directory: Path) -> int:
    """Take from others what an earlier version or a person let them have; how many modes were changed.

    The directory itself comes last: while it is open to others, an earlier run was interrupted or never was,
    and its content has to be looked at. OSError if the directory is not this user's.
    """
    if directory.stat().st_mode & 0o777 == DIRECTORY_MODE:
        return 0
    changed = 0
    for folder, _, files in os.walk(directory, topdown=False):
        for name in files:
            changed += _limit(Path(folder, name), FILE_MODE)
        changed += _limit(Path(folder), DIRECTORY_MODE)
    return changed


def _limit(path: Path, mode: int) -> int:
    if path.is_symlink() or path.stat().st_mode & 0o777 == mode:
        return 0
    path.chmod(mode)
    return 1
