"""What a leader knows of one follower of one partition, and whether that follower is in sync. Pure."""

from __future__ import annotations

import enum
from collections import deque


class FollowerState(enum.Enum):
    IDLE = "idle"
    """No link, or nothing asked yet."""
    ASKED = "asked"
    """OPEN is out: where does the follower's log stand?"""
    FED = "fed"
    """The follower gets every batch from `next_offset` on."""


class FollowerProgress:
    __slots__ = (
        "_mark_offset",
        "_mark_time",
        "_sent",
        "acked_end",
        "in_flight_bytes",
        "is_reading",
        "is_reopening",
        "log_start_offset",
        "next_offset",
        "peer",
        "sample",
        "state",
        "told_start",
        "told_watermark",
    )

    def __init__(self, peer: int, log_end_offset: int, now: float) -> None:
        self.peer = peer
        self.state = FollowerState.IDLE
        self.next_offset = 0
        self.acked_end = -1
        """Durable end offset that the follower reported in this epoch; -1 before the first report."""
        self.in_flight_bytes = 0
        self.log_start_offset = -1
        """Where the follower's log starts, as it reported in this epoch; -1 before the first report."""
        self.told_watermark = -1
        self.told_start = -1
        self.sample = 0
        """Number of a watermark's move that this follower is to send back; 0 for none."""
        self.is_reading = False
        """A read from disk for this follower is under way."""
        self.is_reopening = False
        """It is asked anew soon: once, however often it refuses and whoever asks it meanwhile."""
        self._sent: deque[tuple[int, int]] = deque()
        self._mark_offset = log_end_offset
        self._mark_time = now

    def asked(self) -> None:
        self.state = FollowerState.ASKED

    def fed_from(self, offset: int) -> None:
        self.state = FollowerState.FED
        self.next_offset = offset
        # Its log ends there now: it may have lost what it had acknowledged (a new disk).
        self.acked_end = min(self.acked_end, offset)
        self._forget_sent()
        self.told(-1, -1)

    def told(self, high_watermark: int, log_start_offset: int) -> None:
        self.told_watermark = high_watermark
        self.told_start = log_start_offset

    def lost(self) -> None:
        """The link broke, or the follower refused: nothing is known to be on its way."""
        self.state = FollowerState.IDLE
        self._forget_sent()

    def _forget_sent(self) -> None:
        self._sent.clear()
        self.in_flight_bytes = 0
        self.sample = 0

    def sent(self, next_offset: int, size: int) -> None:
        self._sent.append((next_offset, size))
        self.in_flight_bytes += size
        self.next_offset = next_offset

    def acked(self, end_offset: int, log_end_offset: int, now: float) -> None:
        while self._sent and self._sent[0][0] <= end_offset:
            self.in_flight_bytes -= self._sent.popleft()[1]
        self.acked_end = end_offset
        if end_offset >= self._mark_offset:
            # It has all that was there when we last looked: it keeps up. Look again from here.
            self._mark_offset = log_end_offset
            self._mark_time = now

    def lags_since(self, log_end_offset: int, now: float) -> float:
        """Seconds for which the follower has not had what was there back then; 0 if it has everything."""
        if self.acked_end >= log_end_offset:
            self._mark_offset, self._mark_time = log_end_offset, now
            return 0.0
        return now - self._mark_time
