"""Segments that have left a log but still have files, and segments that the checkpoints still need.

Recovery cuts the segment that was active at its checkpoint to the size noted there. So that file has to stay
as it was: it may be deleted only when a newer checkpoint has another one, and compacted only when neither of
the two checkpoints that are kept has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chronik.storage.segment import Segment


class Retirement:
    __slots__ = (
        "_checkpoint_bases",
        "_pending_delete",
        "compacted_below",
        "is_compacting",
        "last_compaction",
    )

    def __init__(self, checkpoint_base: int) -> None:
        """`checkpoint_base` is the base offset of the active segment at the checkpoint that was loaded."""
        self._checkpoint_bases = (0, checkpoint_base)
        """Base offset of the active segment at each of the two checkpoints that are kept, older first."""
        self._pending_delete: list[tuple[float, Segment]] = []
        """Segments before the log start, each with the time from which its files may be deleted."""
        self.is_compacting = False
        """Whether a compaction is replacing files. No file is deleted during that time."""
        self.last_compaction = 0
        """Number of this log's last compaction, unique on this node since it started; 0 before the first."""
        self.compacted_below = 0
        """End offset of the last compaction. Records before it may have been removed."""

    def note_checkpoint(self, active_base_offset: int) -> None:
        """A checkpoint with this active segment is on disk."""
        self._checkpoint_bases = (self._checkpoint_bases[1], active_base_offset)

    def forget_checkpoints(self) -> None:
        """The log was truncated: a segment that was closed may be the active one again."""
        self._checkpoint_bases = (0, 0)

    @property
    def settled_below(self) -> int:
        """Segments with a lower base offset ended before both checkpoints and are synced."""
        return min(self._checkpoint_bases)

    def compaction_began(self) -> None:
        self.is_compacting = True

    def compaction_ended(self, number: int, end_offset: int) -> None:
        """A compaction of everything before `end_offset` is over, or failed when some of it was done."""
        self.is_compacting = False
        self.last_compaction = number
        self.compacted_below = max(self.compacted_below, end_offset)

    def schedule_delete(self, segments: Iterable[Segment], due: float) -> None:
        self._pending_delete += [(due, segment) for segment in segments]

    def take_due(self, now: float) -> list[Segment]:
        """Remove and return the segments whose files may be deleted now."""
        if not self._pending_delete or self.is_compacting:
            return []
        last = self._checkpoint_bases[1]
        gone = [segment for due, segment in self._pending_delete if due <= now and segment.base_offset < last]
        self.forget(gone)
        return gone

    def waits_for_checkpoint(self, now: float) -> bool:
        """Whether files could be deleted now, were there a newer checkpoint."""
        if not self._pending_delete or self.is_compacting:
            return False
        last = self._checkpoint_bases[1]
        return any(due <= now and segment.base_offset >= last for due, segment in self._pending_delete)

    @property
    def pending_delete(self) -> list[Segment]:
        return [segment for _, segment in self._pending_delete]

    def holds(self, segment: Segment) -> bool:
        return segment in self.pending_delete

    def forget(self, segments: Sequence[Segment]) -> None:
        self._pending_delete = [
            (due, segment) for due, segment in self._pending_delete if segment not in segments
        ]

    def clear(self) -> list[Segment]:
        """The log was emptied: remove and return all segments that wait for deletion, due or not."""
        gone, self._pending_delete = self.pending_delete, []
        self._checkpoint_bases = (0, 0)
        return gone
