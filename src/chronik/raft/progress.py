"""What the leader knows of one follower's log, and what it may send it.

probe      one append at a time, until the follower's log is found to agree
replicate  appends are sent ahead of their answers, within a window
snapshot   the follower needs entries that were compacted away; nothing until it has the snapshot
"""

from __future__ import annotations

import enum
from collections import deque

__all__ = ["Progress", "ProgressState", "Window"]


class ProgressState(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Window:
    """Appends under way, limited by number and by bytes. The last one in may overshoot the bytes."""

    __slots__ = ("_sent", "bytes", "max_bytes", "max_count")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.bytes = 0
        self._sent: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def is_full(self) -> bool:
        return len(self._sent) >= self.max_count or self.bytes >= self.max_bytes

    def add(self, last_index: int, size_bytes: int) -> None:
        self._sent.append((last_index, size_bytes))
        self.bytes += size_bytes

    def free_to(self, index: int) -> None:
        while self._sent and self._sent[0][0] <= index:
            self.bytes -= self._sent.popleft()[1]

    def clear(self) -> None:
        self._sent.clear()
        self.bytes = 0


class Progress:
    __slots__ = (
        "commit_sent",
        "is_active",
        "is_nudged",
        "match",
        "next",
        "read_round",
        "snapshot_age_ticks",
        "snapshot_index",
        "state",
        "waits_for_answer",
        "window",
    )

    def __init__(self, next_index: int, window: Window, *, match: int = 0) -> None:
        self.match = match
        """The follower's log is durably the leader's up to here. Never goes back."""
        self.next = next_index
        """First entry not yet sent. Always above `match`; a guess while probing."""
        self.state = ProgressState.PROBE
        self.window = window
        self.is_active = False
        """Heard from since the last quorum check."""
        self.is_nudged = False
        """Send an append at the next chance even if it is empty or the window is full: its answer
        tells what became of appends that went unanswered."""
        self.waits_for_answer = False
        """Probing, and the probe is out."""
        self.commit_sent = 0
        """The commit index that was last sent to it; worth an append of its own when it moves."""
        self.snapshot_index = 0
        self.snapshot_age_ticks = 0
        self.read_round = 0

    @property
    def may_send(self) -> bool:
        if self.state is ProgressState.PROBE:
            return not self.waits_for_answer
        return self.state is ProgressState.REPLICATE and not self.window.is_full

    def sent(self, last_index: int, size_bytes: int, commit: int) -> None:
        self.is_nudged = False
        self.commit_sent = max(self.commit_sent, commit)
        if self.state is ProgressState.REPLICATE:
            if last_index >= self.next:
                self.next = last_index + 1
                self.window.add(last_index, size_bytes)
        else:
            self.waits_for_answer = True

    def accepted(self, index: int) -> bool:
        """The follower's log agrees up to `index`. Says whether that is news."""
        if index < self.match:
            return False
        is_news = index > self.match
        self.match = index
        self.next = max(self.next, index + 1)
        self.window.free_to(index)
        if self.state is ProgressState.PROBE or (
            self.state is ProgressState.SNAPSHOT and index >= self.snapshot_index
        ):
            self.become_replicate()
        return is_news

    def rejected(self, prev_index: int, retry_after: int) -> bool:
        """The follower lacks `prev_index`; try again after `retry_after`. False if this is old news."""
        if prev_index <= self.match:
            return False
        if self.state is ProgressState.REPLICATE:
            self.become_probe()
            return True
        if self.state is ProgressState.SNAPSHOT or prev_index != self.next - 1:
            return False
        self.next = max(min(prev_index, retry_after + 1), self.match + 1)
        self.waits_for_answer = False
        return True

    def become_probe(self) -> None:
        self.state = ProgressState.PROBE
        self.next = self.match + 1
        self.commit_sent = 0
        self._reset()

    def become_replicate(self) -> None:
        self.state = ProgressState.REPLICATE
        self.next = self.match + 1
        self._reset()

    def become_snapshot(self, snapshot_index: int) -> None:
        self.state = ProgressState.SNAPSHOT
        self.snapshot_index = snapshot_index
        self._reset()

    def _reset(self) -> None:
        self.window.clear()
        self.waits_for_answer = False
        self.snapshot_age_ticks = 0
