"""An object made from files, and made again when they change, so that a new certificate needs no restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

__all__ = ["Reloaded"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """Made from scratch each time, so that what the files no longer contain, an authority for example, is
    forgotten. If the files are invalid the old object stays and one line is logged: a certificate may be
    there before its key.
    """

    def __init__(self, what: str, paths: Iterable[Path | None], make: Callable[[], T]) -> None:
        """`make` raises OSError or ValueError if the files are not what they should be."""
        self._what = what
        self._paths = [path for path in paths if path is not None]
        self._make = make
        self._refused: tuple[object, ...] = ()
        self._seen = self._look()
        self.held = make()
        """The object as it was last made."""

    def current(self) -> T:
        """The object, made again if the files changed."""
        self.reload()
        return self.held

    def reload(self) -> bool:
        """Whether the files changed and could be used."""
        seen = self._look()
        if not seen or seen in (self._seen, self._refused):
            return False
        try:
            self.held = self._make()
        except (OSError, ValueError) as error:
            self._refused = seen
            log.warning("%s changed and cannot be used, the old one stays: %s", self._what, error)
            return False
        self._seen, self._refused = seen, ()
        log.info("%s was reloaded", self._what)
        return True

    def _look(self) -> tuple[object, ...]:
        try:
            stats = [path.stat() for path in self._paths]
        except OSError:
            return ()
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in stats)
