"""Linearizable reads without a log entry (thesis §6.4).

A read may be served from the state machine once it has applied everything that was committed when
the read came in, provided that its leader still was the leader then. That is shown by a round of
heartbeats sent after the read came in and answered by a majority. Rounds are numbered; a later
round's answer stands for all earlier ones, so a lost heartbeat costs no read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["ReadResult", "Reads"]


@dataclass(frozen=True, slots=True)
class ReadResult:
    ctx: int
    index: int | None
    """Serve the read when this much is applied. None: leadership was lost, ask the new leader."""


class Reads:
    def __init__(self) -> None:
        self.round = 0
        self._arrived: list[int] = []
        self._rounds: deque[tuple[int, int, list[int]]] = deque()

    def ask(self, ctx: int) -> None:
        self._arrived.append(ctx)

    def start_round(self, commit: int) -> bool:
        """Gather the reads that came in since the last round; says whether there are any."""
        if not self._arrived:
            return False
        self.round += 1
        self._rounds.append((self.round, commit, self._arrived))
        self._arrived = []
        return True

    def confirm(self, round_answered: int) -> list[ReadResult]:
        results: list[ReadResult] = []
        while self._rounds and self._rounds[0][0] <= round_answered:
            _, index, contexts = self._rounds.popleft()
            results.extend(ReadResult(ctx, index) for ctx in contexts)
        return results

    def fail(self) -> list[ReadResult]:
        contexts = [ctx for _, _, waiting in self._rounds for ctx in waiting] + self._arrived
        self._rounds.clear()
        self._arrived = []
        return [ReadResult(ctx, None) for ctx in contexts]
