"""Which connections wrote to a partition, for people who ask after one record. Pure.

A leader notes a writer only when it is not the one that wrote before, and keeps the last changes: nothing is
noted per record. The caller compares, so that a batch of the same writer costs no call.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

__all__ = ["Writer", "Writers"]

WRITERS_KEPT_MAX: Final = 32
"""Changes kept for each partition that this node leads: few, since no budget counts them."""
CLIENT_ID_KEPT_MAX: Final = 200
"""Characters. A client may send 32,767."""
_NONE: Final[deque[tuple[int, Writer | None]]] = deque(maxlen=0)
"""Shared by partitions that nobody has written to."""


class Writer(msgspec.Struct, frozen=True, gc=False):
    """A connection that sends batches, under one client id. One object per connection: compare with `is`."""

    client_id: str | None
    host: str
    port: int

    @classmethod
    def named(cls, client_id: str | None, host: str, port: int) -> Writer:
        return cls(_kept(client_id), host, port)

    def is_named(self, client_id: str | None) -> bool:
        return self.client_id == _kept(client_id)


def _kept(client_id: str | None) -> str | None:
    return None if client_id is None else client_id[:CLIENT_ID_KEPT_MAX]


class Writers:
    __slots__ = ("_changes", "last")

    def __init__(self) -> None:
        self.last: Writer | None = None
        """Who wrote the last batch; None if nobody that is known."""
        self._changes = _NONE
        """Offsets and writers, ascending: from each offset up to the next one, all was written by this
        writer."""

    def note(self, base_offset: int, writer: Writer | None) -> None:
        """`writer` wrote the batch at `base_offset`, and is not the `last` one.

        None stands for batches that no client wrote. A retry that is answered with the offset of its first
        attempt changes nothing.
        """
        changes = self._changes
        if not changes:
            changes = self._changes = deque(maxlen=WRITERS_KEPT_MAX)
        elif base_offset <= changes[-1][0]:
            return
        self.last = writer
        changes.append((base_offset, writer))

    def of(self, offset: int) -> Writer | None:
        """Who wrote the record; None if that is not known (any more)."""
        return next((writer for base, writer in reversed(self._changes) if base <= offset), None)

    def forget(self) -> None:
        """Offsets may be given out again, or another node leads."""
        self.last = None
        self._changes = _NONE
