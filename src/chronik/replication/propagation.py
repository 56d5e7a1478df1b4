"""How soon followers know a watermark (S25), measured by the leader's clock alone.

Every `SAMPLE_SECONDS`, at most, a move of a watermark gets a number. The number is sent with the watermark to
each in-sync follower, which sends it back; so the way back is counted too. When a sample is taken does not
depend on whether the last one came back: otherwise a slow follower would be sampled less often.
"""

from __future__ import annotations

from typing import Final

from chronik.metrics import Histogram, clock
from chronik.model import NodeId

SAMPLE_SECONDS: Final = 0.01
UNDER_WAY_MAX: Final = 1_000
"""Samples that are waited for. The oldest is given up: its follower is gone."""


class Propagation:
    def __init__(self) -> None:
        self.next_at = 0.0
        """When the next sample is due, by the event loop's clock. Before that nobody calls `begin`."""
        self._number = 0
        self._began: dict[int, float] = {}
        self.seconds: dict[NodeId, Histogram] = {}
        """How long propagation takes, by follower."""

    def begin(self, now: float) -> int:
        """A watermark moved right now; returns the number that followers are to send back."""
        self.next_at = now + SAMPLE_SECONDS
        self._number += 1
        self._began[self._number] = clock()
        self._began.pop(self._number - UNDER_WAY_MAX, None)
        return self._number

    def arrived(self, peer: NodeId, number: int) -> None:
        began = self._began.get(number)
        if began is None:
            return
        found = self.seconds.get(peer)
        if found is None:
            found = self.seconds[peer] = Histogram()
        found.observe(clock() - began)
