"""Which entries the driver was handed to persist, and which it reported durable.

A truncation may come between a hand-out and the report that it is durable. So each hand-out leaves
a mark: the index up to which the log is durable once that hand-out is. A truncation lowers the
marks too. A late report then counts only for the entries that were not truncated.
"""

from __future__ import annotations

from collections import deque

__all__ = ["LogDurability"]


class LogDurability:
    __slots__ = ("_marks", "durable", "handed", "truncate_from")

    def __init__(self, stored_last_index: int) -> None:
        self.durable = stored_last_index
        """Entries up to here survive a crash. Never beyond `handed`."""
        self.handed = stored_last_index
        """Entries up to here were handed to the driver, or came from it."""
        self.truncate_from: int | None = None
        """First index of handed-out entries that were truncated. None once a Ready has carried it."""
        self._marks: deque[tuple[int, int]] = deque()

    def is_dirty(self, last_index: int) -> bool:
        return self.truncate_from is not None or self.handed < last_index

    def hand_out(self, number: int, last_index: int) -> None:
        self.handed = last_index
        self.truncate_from = None
        self._marks.append((number, last_index))

    def persisted(self, number: int) -> None:
        """Hand-outs become durable in order, so this one confirms all before it."""
        while self._marks and self._marks[0][0] <= number:
            self.durable = max(self.durable, self._marks.popleft()[1])

    def truncate(self, from_index: int) -> None:
        if from_index <= self.handed:
            self.truncate_from = from_index  # below any earlier one, which cut `handed` as well
        self._cut(from_index - 1)

    def restart_at(self, snapshot_index: int) -> None:
        """A snapshot replaces the log: nothing is durable until the snapshot is."""
        self._cut(0)
        self.handed = snapshot_index
        self.truncate_from = None

    def _cut(self, last_index: int) -> None:
        self.handed = min(self.handed, last_index)
        self.durable = min(self.durable, last_index)
        self._marks = deque((number, min(end, last_index)) for number, end in self._marks)
