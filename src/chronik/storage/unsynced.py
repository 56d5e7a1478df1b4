"""What stands in the WAL's file and is not synced yet: relaxed rounds, and when their sync is due. Pure.

A sync that runs beside the rounds covers what was written before it began; what comes meanwhile waits for the
next one. If a sync fails, everything that is not known to be synced is in doubt until its logs have written
it again.
"""

from __future__ import annotations

from math import inf
from typing import Final

from chronik.storage.wal_queue import RelaxedSink

DUE_SHARE: Final = 0.5
"""Share of the time allowed after which the sync begins, so that it is over in time."""
UNSYNCED_BYTES_MAX: Final = 4 * 1024 * 1024
"""If more than this waits a sync begins at once: segments are written and memory is given back only after it.
"""


class Unsynced:
    __slots__ = (
        "_in_doubt",
        "_syncing",
        "_syncing_bytes",
        "_syncing_since",
        "_written",
        "bytes",
        "due",
        "is_idle",
        "since",
    )

    def __init__(self) -> None:
        self._written: dict[RelaxedSink, int] = {}
        """Written since the last sync began: sinks with their newest tokens."""
        self._syncing: dict[RelaxedSink, int] | None = None
        """The same for what the sync under way covers; None if there is none."""
        self._in_doubt: dict[RelaxedSink, None] = {}
        self._syncing_bytes = 0
        self._syncing_since = inf
        self.is_idle = True
        """Whether there is nothing unsynced, nor in doubt: as ever where no topic is relaxed."""
        self.bytes = 0
        """Written since the last sync began."""
        self.since = inf
        """When the first of that was written."""
        self.due = inf
        """When the next sync has to begin."""

    def __bool__(self) -> bool:
        return bool(self._written or self._syncing)

    @property
    def is_written(self) -> bool:
        """Whether there is something that no sync covers yet."""
        return bool(self._written)

    @property
    def is_syncing(self) -> bool:
        return self._syncing is not None

    @property
    def is_in_doubt(self) -> bool:
        return bool(self._in_doubt)

    @property
    def is_much(self) -> bool:
        return self.bytes >= UNSYNCED_BYTES_MAX

    @property
    def all_bytes(self) -> int:
        return self.bytes + self._syncing_bytes

    def age(self, now: float) -> float:
        """Seconds since the oldest of it was written; 0 if there is nothing."""
        since = min(self.since, self._syncing_since)
        return max(now - since, 0.0) if since < inf else 0.0

    def add(self, tokens: dict[RelaxedSink, int], size: int, within: float, now: float) -> None:
        """A relaxed round was written."""
        self.is_idle = False
        self._written.update(tokens)
        self.bytes += size
        self.since = min(self.since, now)
        self.due = min(self.due, now + within * DUE_SHARE)

    def begin(self) -> None:
        """A sync begins."""
        self._syncing, self._written = self._written, {}
        self._syncing_bytes, self.bytes = self.bytes, 0
        self._syncing_since, self.since = self.since, inf
        self.due = inf

    def take_synced(self) -> dict[RelaxedSink, int]:
        """The sync that had begun is over: what it covered."""
        synced, self._syncing = self._syncing or {}, None
        self._syncing_bytes, self._syncing_since = 0, inf
        self.is_idle = not (self._written or self._in_doubt)
        return synced

    def take_all(self) -> dict[RelaxedSink, int]:
        """A round was synced behind all of it."""
        synced = {**self.take_synced(), **self._written}
        self._forget_written()
        return synced

    def _forget_written(self) -> None:
        self._written = {}
        self.bytes = 0
        self.since = self.due = inf
        self.is_idle = not self._in_doubt

    # --- doubt ---------------------------------------------------------------------------------------

    def fail(self) -> None:
        """A sync failed: everything is in doubt."""
        self._in_doubt |= dict.fromkeys(self.take_all())
        self.is_idle = not self._in_doubt
        for sink in self._in_doubt:
            sink.doubt()

    def write_again(self) -> None:
        """Have every log append again what is in doubt, as entries that are synced with their round."""
        for sink in list(self._in_doubt):
            sink.write_again()

    def settle(self) -> None:
        """Something was synced: forget those that are not in doubt any more."""
        self._in_doubt = {sink: None for sink in self._in_doubt if sink.is_in_doubt}
        self.is_idle = not (self._written or self._syncing or self._in_doubt)
