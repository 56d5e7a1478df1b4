"""What a leader knows of one follower of one partition. Pure.

Reports move it (`acknowledged`, `starts_at`); the high watermark and the ISR follow from it. How far the feed
of the follower has got is the cursor's business.
"""

from __future__ import annotations


class FollowerProgress:
    __slots__ = ("_mark_offset", "_mark_time", "acked_end", "log_start_offset")

    def __init__(self, log_end_offset: int, now: float) -> None:
        self.acked_end = -1
        """Durable end offset that the follower reported in this epoch; -1 before the first report."""
        self.log_start_offset = -1
        """Where the follower's log starts, as it reported in this epoch; -1 before the first report."""
        self._mark_offset = log_end_offset
        """The leader's log end at `_mark_time`: a follower that reaches it has kept up since then."""
        self._mark_time = now

    def starts_at(self, offset: int) -> None:
        """The follower's log ends at `offset` now: it may have lost what it had (a new disk)."""
        self.acked_end = min(self.acked_end, offset)

    def acknowledged(self, end_offset: int, log_end_offset: int, now: float) -> None:
        self.acked_end = end_offset
        if end_offset >= self._mark_offset:
            self._mark_offset = log_end_offset
            self._mark_time = now

    def lag_seconds(self, log_end_offset: int, now: float) -> float:
        """For how long the follower has not had everything that was there; 0 if it has everything now."""
        if self.acked_end >= log_end_offset:
            self._mark_offset, self._mark_time = log_end_offset, now
            return 0.0
        return now - self._mark_time
