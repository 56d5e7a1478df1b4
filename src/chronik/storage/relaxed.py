"""What a log has to know because its appends may be reported before they are synced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.records.batch import CONTROL_MASK

if TYPE_CHECKING:
    from chronik.storage.log import PartitionLog


class Relaxed:
    __slots__ = ("_doubt_end_offset", "_strict_end_offset", "must_write_again")

    def __init__(self) -> None:
        self.must_write_again = False
        """Whether what lies between the log's synced and its durable end has to go to the WAL again before
        anything else of the log: its sync failed."""
        self._doubt_end_offset = 0
        """Where that ended when the sync failed."""
        self._strict_end_offset = 0
        """End of the last append that is synced with its commit round although the log is relaxed."""

    def sync_within(self, log: PartitionLog, attributes: int) -> float:
        """Seconds within which the WAL syncs what ends the log now; 0: before it reports it.

        The end of a transaction is always synced, and the transaction's records with it. The coordinator
        takes a partition that has the marker for done, and never asks again.
        """
        end = log.log_end_offset
        unsynced = end - max(log.synced_end_offset, self._strict_end_offset)
        if attributes & CONTROL_MASK or unsynced >= log.config.sync_records:
            self._strict_end_offset = end
            return 0.0
        return log.config.sync_within_seconds

    def writes_again(self) -> None:
        """What is in doubt goes to the WAL now."""
        self.must_write_again = False

    def doubt(self, log: PartitionLog) -> None:
        """The WAL's file could not be synced: what is not known to be synced may be lost with the power."""
        if log.synced_end_offset < log.durable_end_offset:
            self._doubt_end_offset = log.durable_end_offset
            self.must_write_again = True

    def is_in_doubt(self, log: PartitionLog) -> bool:
        """Whether something that is durable may be in no file of the WAL that can be relied on."""
        return log.synced_end_offset < self._doubt_end_offset and not log.deleted

    def cut(self, end_offset: int) -> None:
        """The log was truncated."""
        self._strict_end_offset = min(self._strict_end_offset, end_offset)
        self._doubt_end_offset = min(self._doubt_end_offset, end_offset)
