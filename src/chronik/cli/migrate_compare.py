"""Two logs of one partition held against each other, record by record. Pure: rows come in, findings go out.

Offsets differ on the two sides (compaction and transactions leave holes), so records are paired in order.
Where a pair differs, a window behind it tells whether records are missing, too many, or other ones.

Pairs also translate offsets: a group that goes on behind n pairs on the old side does so on the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from chronik.records.reader import Row

WINDOW: Final = 500
"""Records behind a difference among which both sides are brought together again."""
SHOWN_MAX: Final = 5
"""Differences of a partition that are told one by one; all are counted."""


@dataclass(slots=True)
class Counts:
    compared: int = 0
    missing: int = 0
    """On the old side, and not on the new one."""
    extra: int = 0
    """On the new side, and not on the old one."""
    different: int = 0
    not_yet: int = 0
    """At the old side's end, and not copied so far."""
    newer: int = 0
    """Records beyond the old side's end, as far as they were read."""

    @property
    def agree(self) -> bool:
        return not (self.missing or self.extra or self.different or self.not_yet)


@dataclass(slots=True)
class Mark:
    """A committed offset of a group on both sides; None: it has none there."""

    group: str
    old_offset: int
    new_offset: int | None
    old_pairs: int = 0
    """Pairs before the offset, on the old side."""
    new_pairs: int = 0
    expected: int | None = None
    """The offset on the new side at which the group would go on with the same record; None: behind all."""

    @property
    def read_again(self) -> int:
        """Records that the group would read a second time; negative: that it would never read."""
        return self.old_pairs - self.new_pairs


@dataclass(slots=True)
class Comparison:
    """Feed rows of both sides with `old` and `new`, call `settle` in between and `finish` at the end."""

    with_timestamps: bool = True
    marks: list[Mark] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    shown: list[str] = field(default_factory=list)
    _old: deque[Row] = field(default_factory=deque)
    _new: deque[Row] = field(default_factory=deque)
    _by_old: list[Mark] = field(default_factory=list)
    _by_new: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_old = sorted(self.marks, key=lambda mark: mark.old_offset, reverse=True)
        placed = [mark for mark in self.marks if mark.new_offset is not None]
        self._by_new = sorted(placed, key=lambda mark: mark.new_offset or 0, reverse=True)

    @property
    def holds_old(self) -> bool:
        return bool(self._old)

    @property
    def wants_old(self) -> bool:
        return len(self._old) <= WINDOW

    @property
    def wants_new(self) -> bool:
        return len(self._new) <= WINDOW

    def same(self, old: Row, new: Row) -> bool:
        return old[2:] == new[2:] and (old[1] == new[1] or not self.with_timestamps)

    def old(self, rows: Iterable[Row]) -> None:
        self._old.extend(rows)

    def new(self, rows: Iterable[Row]) -> None:
        self._new.extend(rows)

    def settle(self, *, old_ended: bool = False, new_ended: bool = False) -> None:
        """Pair what is there. A side that has not ended keeps a window, to look ahead in."""
        old, new = self._old, self._new
        while old and new:
            if self.same(old[0], new[0]):
                self._pair(old.popleft()[0], new.popleft()[0])
                continue
            if (len(old) <= WINDOW and not old_ended) or (len(new) <= WINDOW and not new_ended):
                return
            self._resolve(at_end=old_ended and new_ended)

    def finish(self) -> None:
        """Both sides are at their end."""
        self.settle(old_ended=True, new_ended=True)
        self.counts.not_yet += len(self._old)
        self.counts.newer += len(self._new)
        if self._old:
            count, first = len(self._old), self._old[0][0]
            self._show(f"{count:,} records from old offset {first} on are not on the new side")
        for mark in self._by_old:
            mark.old_pairs = self.counts.compared
        for mark in self._by_new:
            mark.new_pairs = self.counts.compared
        self._old.clear()
        self._new.clear()

    def _pair(self, old_offset: int, new_offset: int) -> None:
        while self._by_old and self._by_old[-1].old_offset <= old_offset:
            mark = self._by_old.pop()
            mark.old_pairs, mark.expected = self.counts.compared, new_offset
        while self._by_new and (self._by_new[-1].new_offset or 0) <= new_offset:
            self._by_new.pop().new_pairs = self.counts.compared
        self.counts.compared += 1

    def _resolve(self, *, at_end: bool) -> None:
        """The first rows differ: drop what only one side has, or take them for a pair that differs."""
        old, new = self._old, self._new
        reach = max(len(old), len(new)) if at_end else WINDOW
        for distance in range(1, min(reach, WINDOW) + 1):
            if distance < len(old) and self.same(old[distance], new[0]):
                self._drop(old, distance, "missing", "old")
                return
            if distance < len(new) and self.same(old[0], new[distance]):
                self._drop(new, distance, "extra", "new")
                return
        (old_row, new_row) = old.popleft(), new.popleft()
        what = _differs(old_row, new_row)
        self._show(f"old offset {old_row[0]} and new offset {new_row[0]} differ in {what}")
        self._pair(old_row[0], new_row[0])
        self.counts.different += 1

    def _drop(self, side: deque[Row], count: int, what: str, name: str) -> None:
        first = side[0][0]
        for _ in range(count):
            side.popleft()
        records = "1 record" if count == 1 else f"{count:,} records"
        there = "missing on the new side" if what == "missing" else "not on the old side"
        self._show(f"{records} at {name} offset {first} {'is' if count == 1 else 'are'} {there}")
        setattr(self.counts, what, getattr(self.counts, what) + count)

    def _show(self, said: str) -> None:
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(said)


def _differs(old: Row, new: Row) -> str:
    names = ("timestamp", "key", "value", "headers")
    return ", ".join(name for name, a, b in zip(names, old[1:], new[1:], strict=True) if a != b)
