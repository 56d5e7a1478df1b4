"""How soon followers know a watermark (S25), measured by the leader's clock alone.

Now and then a move of a watermark is numbered. The number follows the watermark to each follower in sync,
which sends it back when it has got there; so the way back is counted too. What is sampled depends on the time
since the last sample and not on whether that one is back: a slow follower must not make itself rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chronik.metrics import Histogram, clock
from chronik.model import NodeId

SAMPLE_SECONDS: Final = 0.01
UNDER_WAY_MAX: Final = 1_000
"""A sample that so many later ones overtook is given up: its follower is gone."""


class Propagation:
    def __init__(self, now: Callable[[], float]) -> None:
        """`now` decides when to sample; it may be coarse, and is the simulator's in a simulated world."""
        self._now = now
        self._next_at = now()
        self._number = 0
        self._began: dict[int, float] = {}
        self.seconds: dict[NodeId, Histogram] = {}
        """By follower."""

    @property
    def is_due(self) -> bool:
        return self._now() >= self._next_at

    def begin(self) -> int:
        """A watermark moved right now; returns the number that followers are to send back."""
        self._next_at = self._now() + SAMPLE_SECONDS
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
