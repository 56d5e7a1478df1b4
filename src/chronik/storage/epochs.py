"""The leader epochs of a log with their first offsets. Two logs compare them to find where they diverge
(KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from chronik.model import NO_EPOCH


class EpochHistory:
    __slots__ = ("_entries", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = [(epoch, start) for epoch, start in entries]
        self.latest = NO_EPOCH
        """Leader epoch of the log's last batch. An attribute, since each append compares with it."""
        self._note_latest()

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, first offset) pairs, both ascending."""
        return self._entries

    @property
    def first(self) -> int:
        """The oldest epoch; NO_EPOCH if the log is empty."""
        return self._entries[0][0] if self._entries else NO_EPOCH

    def _note_latest(self) -> None:
        self.latest = self._entries[-1][0] if self._entries else NO_EPOCH

    def note(self, epoch: int, offset: int) -> None:
        """A batch of `epoch` starts at `offset`."""
        if epoch > self.latest:
            self._entries.append((epoch, offset))
            self.latest = epoch

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch at or below `epoch` and the offset where it ends; (-1, -1) if there is none."""
        place = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        if place == 0:
            return NO_EPOCH, -1
        end = self._entries[place][1] if place < len(self._entries) else log_end_offset
        return self._entries[place - 1][0], end

    def epoch_of(self, offset: int) -> int:
        place = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[place - 1][0] if place else NO_EPOCH

    def truncate_end(self, offset: int) -> None:
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()
        self._note_latest()

    def truncate_start(self, offset: int) -> None:
        """Forget epochs that ended at or before `offset`. The epoch of `offset` itself starts there now."""
        place = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        if place:
            epoch = self._entries[place - 1][0]
            self._entries[:place] = [(epoch, offset)]
