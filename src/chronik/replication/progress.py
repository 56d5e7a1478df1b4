"""What a leader knows of one follower of one partition. Pure.

Reports move it (`acknowledged`, `starts_at`); the high watermark and the ISR follow from it. How far the feed
of the follower has got is the cursor's business.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

ACK_SLOT_SECONDS: Final = 0.1
"""At most one acknowledgement per slot is remembered: the last one."""
ACKS_KEPT_MAX: Final = 16
"""A leader keeps as many for each follower of each partition, and no budget counts them: few."""
_NO_ENDS: Final = array("q")
_NO_TIMES: Final = array("d")
"""Shared by those that have not closed a slot yet. Never written to."""


class AckTime(NamedTuple):
    """When a follower acknowledged an offset."""

    after: float | None
    """The last known time at which the offset was not acknowledged; None if no acknowledgement came
    before."""
    by: float
    """The first known time at which it was."""


class FollowerProgress:
    __slots__ = (
        "_ack_ends",
        "_ack_times",
        "_acked_time",
        "_mark_offset",
        "_mark_time",
        "_slot_time",
        "acked_end",
        "log_start_offset",
    )

    def __init__(self, log_end_offset: int, now: float) -> None:
        self.acked_end = -1
        """Durable end offset that the follower reported in this epoch; -1 before the first report."""
        self.log_start_offset = -1
        """Where the follower's log starts, as it reported in this epoch; -1 before the first report."""
        self._mark_offset = log_end_offset
        """The leader's log end at `_mark_time`: a follower that reaches it has kept up since then."""
        self._mark_time = now
        self._acked_time = self._slot_time = now
        """When `acked_end` was reported, and when the slot of that began."""
        self._ack_ends = _NO_ENDS
        self._ack_times = _NO_TIMES
        """Last acknowledgement of each earlier slot, ascending; older ones are sparser."""

    def starts_at(self, offset: int) -> None:
        """The follower's log ends at `offset` now: it may have lost what it had (a new disk)."""
        if offset >= self.acked_end:
            return
        self.acked_end = offset
        place = bisect_left(self._ack_ends, offset)
        if place < len(self._ack_ends):
            self._acked_time = self._ack_times[place]
            del self._ack_ends[place:], self._ack_times[place:]

    def acknowledged(self, end_offset: int, log_end_offset: int, now: float) -> None:
        if end_offset > self.acked_end:
            if now - self._slot_time >= ACK_SLOT_SECONDS:
                self._close_slot(now)
            self._acked_time = now
        self.acked_end = end_offset
        if end_offset >= self._mark_offset:
            self._mark_offset = log_end_offset
            self._mark_time = now

    def _close_slot(self, now: float) -> None:
        self._slot_time = now
        if self.acked_end < 0:
            return
        if self._ack_ends is _NO_ENDS:
            self._ack_ends, self._ack_times = array("q"), array("d")
        self._ack_ends.append(self.acked_end)
        self._ack_times.append(self._acked_time)
        if len(self._ack_ends) > ACKS_KEPT_MAX:
            half = ACKS_KEPT_MAX // 2
            self._ack_ends[:half] = self._ack_ends[:half:2]
            self._ack_times[:half] = self._ack_times[:half:2]

    def when_acknowledged(self, offset: int) -> AckTime | None:
        """None if it has not acknowledged the offset yet."""
        if offset >= self.acked_end:
            return None
        place = bisect_right(self._ack_ends, offset)
        by = self._ack_times[place] if place < len(self._ack_times) else self._acked_time
        return AckTime(self._ack_times[place - 1] if place else None, by)

    def lag_seconds(self, log_end_offset: int, now: float) -> float:
        """For how long the follower has not had everything that was there; 0 if it has everything now."""
        if self.acked_end >= log_end_offset:
            self._mark_offset, self._mark_time = log_end_offset, now
            return 0.0
        return now - self._mark_time
