"""Where the feed of one follower of one partition stands: what was sent, and what is under way. Pure."""

from __future__ import annotations

import enum
from collections import deque


class CursorState(enum.Enum):
    IDLE = "idle"
    """No link, or the follower has not been asked yet."""
    ASKED = "asked"
    """OPEN is out: where does the follower's log stand?"""
    FEEDING = "feeding"
    """The follower gets every batch from `next_offset` on."""
    ENDED = "ended"
    """The follower was removed or the leader epoch is over. The cursor must not be used any more."""


class FeedCursor:
    __slots__ = (
        "_sent",
        "in_flight_bytes",
        "is_reading",
        "is_reopening",
        "next_offset",
        "sample",
        "sent_log_start",
        "sent_watermark",
        "state",
    )

    def __init__(self) -> None:
        self.state = CursorState.IDLE
        self.next_offset = 0
        """The first offset that was not sent yet."""
        self.in_flight_bytes = 0
        """Bytes sent and not acknowledged yet."""
        self.sent_watermark = -1
        """The last high watermark and log start that were sent; -1 before the first."""
        self.sent_log_start = -1
        self.sample = 0
        """Sample number to send with the next watermark, which the follower sends back; 0 for none."""
        self.is_reading = False
        """A read from disk for this follower is under way."""
        self.is_reopening = False
        """A reopen is already scheduled; further refusals must not schedule another."""
        self._sent: deque[tuple[int, int]] = deque()

    def asked(self) -> None:
        self.state = CursorState.ASKED

    def start(self, offset: int) -> None:
        """Feed the follower from `offset` on."""
        self.reset()
        self.state = CursorState.FEEDING
        self.next_offset = offset
        self.sent_watermark = self.sent_log_start = -1

    def reset(self) -> None:
        """The link broke, or the follower refused: nothing is known to be on its way."""
        self.state = CursorState.IDLE
        self._sent.clear()
        self.in_flight_bytes = 0
        self.sample = 0

    def end(self) -> None:
        self.reset()
        self.state = CursorState.ENDED

    def sent(self, next_offset: int, size: int, high_watermark: int, log_start_offset: int) -> None:
        self._sent.append((next_offset, size))
        self.in_flight_bytes += size
        self.next_offset = next_offset
        self.sent_watermark = high_watermark
        self.sent_log_start = log_start_offset

    def acknowledged(self, end_offset: int) -> None:
        """The follower has everything before `end_offset`: the window opens again."""
        while self._sent and self._sent[0][0] <= end_offset:
            self.in_flight_bytes -= self._sent.popleft()[1]
