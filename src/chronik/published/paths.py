"""The paths that the JSON values of an index have, so that a word can be looked for in all of them.

An index of words by path cannot be asked for a word anywhere. So the paths are kept beside it, and a value
whose paths are all known needs no second index of its words; one whose paths are strange or too many does.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["PATHS_FILE", "Paths"]

PATHS_FILE: Final = "chronik.paths"
PATHS_MAX: Final = 128
"""A word is looked for in each of them."""
_STRANGE: Final = re.compile(r"[\x00-\x1f\\]|^$")
"""Names that tantivy would not find again."""


class Paths:
    """Grows with the values; `save` must come before the commit of the documents that made it grow."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = set(known)
        self._saved = -1

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._known))

    def cover(self, value: bytes, fields: Mapping[str, Any]) -> bool:
        """Whether all paths of this value are known, now that they have been learned."""
        is_flat = value.find(b"{", 1) < 0 and value.find(b"[") < 0
        if is_flat and self._known.issuperset(fields):
            return True
        found: set[str] = set()
        if not _collect(fields, "", found):
            return False
        if not found <= self._known:
            if len(found | self._known) > PATHS_MAX:
                return False
            self._known |= found
        return True

    @property
    def is_saved(self) -> bool:
        return self._saved == len(self._known)

    def save(self, folder: Path) -> None:
        """Write the file anew with one rename; it is on the disk when this returns."""
        body = "\n".join(sorted(self._known)).encode()
        temporary = folder / f"{PATHS_FILE}.new"
        with temporary.open("wb") as file:
            file.write(b"%08x\n" % zlib.crc32(body) + body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / PATHS_FILE)
        self._saved = len(self._known)

    @classmethod
    def load(cls, folder: Path) -> Paths:
        """Raises ValueError for what `save` did not write."""
        crc, _, body = (folder / PATHS_FILE).read_bytes().partition(b"\n")
        if crc != b"%08x" % zlib.crc32(body):
            raise ValueError(f"{PATHS_FILE} is not what was written")
        paths = cls(body.decode().split("\n") if body else ())
        paths._saved = len(paths._known)
        return paths

    def merge(self, other: Paths) -> None:
        self._known |= other._known


def _collect(value: Any, path: str, found: set[str]) -> bool:
    """Add the paths of all that is not an object; false if one of them has a strange name."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if _STRANGE.search(name) or not _collect(inner, f"{path}.{name}" if path else name, found):
                return False
    elif isinstance(value, list):
        return all(_collect(inner, path, found) for inner in value)
    else:
        found.add(path)
    return True
