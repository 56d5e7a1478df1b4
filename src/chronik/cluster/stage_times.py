"""How long metadata entries take to each stage (S06), by the clock of the leader that proposed them.

Followers tell with each answer how far they have applied their log, so no clocks are compared; the way
back is counted too. A follower is counted from its first answer on until its connection breaks: what was
written while it was away says nothing about how fast entries travel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from chronik.metrics import Histogram, WriteStages, clock
from chronik.model import NodeId
from chronik.raft import Entry

UNDER_WAY_MAX: Final = 10_000


class StageTimes:
    """Stage times of the entries that this node proposed since it became the leader."""

    def __init__(self, stages: WriteStages) -> None:
        self._stages = stages
        self._proposed_at: dict[int, float] = {}
        """When the entry with this index was proposed. Removed when it is committed."""
        self._unapplied: dict[NodeId, deque[tuple[int, float]]] = {}
        """The entries that a follower has not yet reported as applied: index and time of proposal."""

    def proposed(self, index: int) -> None:
        if len(self._proposed_at) < UNDER_WAY_MAX:
            began = self._proposed_at[index] = clock()
            # Not when it is committed here: with a slow disk here, followers may have applied it by then.
            for waiting in self._unapplied.values():
                waiting.append((index, began))

    def written(self, entries: Iterable[Entry]) -> None:
        self._observe(self._stages.wal, entries)

    def sent(self, entries: Iterable[Entry]) -> None:
        self._observe(self._stages.sent, entries)

    def committed(self, entries: Iterable[Entry]) -> None:
        self._observe(self._stages.committed, entries)
        for entry in entries:
            self._proposed_at.pop(entry.index, None)

    def applied_by(self, follower: NodeId, index: int) -> None:
        waiting = self._unapplied.get(follower)
        if waiting is None:
            self._unapplied[follower] = deque(maxlen=UNDER_WAY_MAX)
            return
        now = clock()
        while waiting and waiting[0][0] <= index:
            self._stages.followers.observe(now - waiting.popleft()[1])

    def lost(self, follower: NodeId) -> None:
        self._unapplied.pop(follower, None)

    def forget(self) -> None:
        """This node lost the leadership: the new leader may put other entries at these indexes."""
        self._proposed_at.clear()
        self._unapplied.clear()

    def _observe(self, stage: Histogram, entries: Iterable[Entry]) -> None:
        if self._proposed_at:
            now = clock()
            for entry in entries:
                began = self._proposed_at.get(entry.index)
                if began is not None:
                    stage.observe(now - began)
