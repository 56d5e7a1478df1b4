"""What a log no longer holds but its files still do, and what the checkpoints still count on.

Recovery cuts the segment that was active at its checkpoint to the size noted there. So that file has to stay
as it was: it may be deleted only when a newer checkpoint has another one, and compacted only when neither of
the two checkpoints that are kept has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chronik.storage.segment import Segment


class Retirement:
    __slots__ = ("_checkpoint_bases", "_doomed", "is_compacting")

    def __init__(self, checkpoint_base: int) -> None:
        """`checkpoint_base` is the base offset of the active segment at the checkpoint that was loaded."""
        self._checkpoint_bases = (0, checkpoint_base)
        """Of the two checkpoints that are kept, the older one first."""
        self._doomed: list[tuple[float, Segment]] = []
        """Segments before the start of the log, with the time from which their files may go."""
        self.is_compacting = False
        """Files are being replaced: none is deleted meanwhile."""

    def note_checkpoint(self, active_base_offset: int) -> None:
        """A checkpoint with this active segment is on disk."""
        self._checkpoint_bases = (self._checkpoint_bases[1], active_base_offset)

    def forget_checkpoints(self) -> None:
        """The end of the log was cut: what was a closed segment may be the active one again."""
        self._checkpoint_bases = (0, 0)

    @property
    def settled_below(self) -> int:
        """Segments with a lower base offset ended before both checkpoints and are synced."""
        return min(self._checkpoint_bases)

    def doom(self, segments: Iterable[Segment], due: float) -> None:
        self._doomed += [(due, segment) for segment in segments]

    def take_due(self, now: float) -> list[Segment]:
        """Those whose files may go now."""
        if not self._doomed or self.is_compacting:
            return []
        last = self._checkpoint_bases[1]
        gone = [segment for due, segment in self._doomed if due <= now and segment.base_offset < last]
        self.forget(gone)
        return gone

    @property
    def doomed(self) -> list[Segment]:
        return [segment for _, segment in self._doomed]

    def holds(self, segment: Segment) -> bool:
        return segment in self.doomed

    def forget(self, segments: Sequence[Segment]) -> None:
        self._doomed = [(due, segment) for due, segment in self._doomed if segment not in segments]

    def clear(self) -> list[Segment]:
        """All of them, whatever their time: the log begins anew."""
        gone, self._doomed = self.doomed, []
        self._checkpoint_bases = (0, 0)
        return gone
