"""What a topic promises about acknowledged records when the power goes. Pure.

Every write is synced before it is acknowledged, unless the topic itself says otherwise by Kafka's names. A
value that bounds nothing (Kafka's default, which tools write out), and the defaults of brokers, relax
nothing: who gives up acknowledged records says so topic by topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chronik.metadata.config_def import LONG_MAX
from chronik.model import is_internal_topic

__all__ = ["FLUSH_CONFIGS", "SYNCED", "DurabilityPromise"]

FLUSH_CONFIGS: Final = ("flush.ms", "flush.messages")
SYNC_WITHIN_MS_MAX: Final = 60_000
"""Longest time for which an acknowledged write may be unsynced, whatever the topic says."""


@dataclass(frozen=True, slots=True)
class DurabilityPromise:
    sync_within_ms: int = 0
    """How soon after it an acknowledged write is synced at the latest; 0: before it is acknowledged."""
    sync_records: int = LONG_MAX
    """Relaxed: a partition never has this many unsynced records."""

    @staticmethod
    def of(*, flush_ms: int, flush_messages: int) -> DurabilityPromise:
        """The promise of a topic whose own configs have these values."""
        if flush_ms == 0 or flush_messages == 1 or min(flush_ms, flush_messages) == LONG_MAX:
            return SYNCED
        return DurabilityPromise(min(flush_ms, SYNC_WITHIN_MS_MAX), flush_messages)

    @staticmethod
    def of_topic(name: str, durability: DurabilityPromise) -> DurabilityPromise:
        """What holds: the node's own topics are never relaxed."""
        return SYNCED if is_internal_topic(name) else durability

    @property
    def is_relaxed(self) -> bool:
        return self.sync_within_ms > 0

    @property
    def promise(self) -> str:
        """In one sentence, for people."""
        if not self.is_relaxed:
            return (
                "An acknowledged write is synced to disk, with acks=all on every in-sync replica: "
                "neither a crash nor a power cut loses it."
            )
        within = f"within {self.sync_within_ms} ms"
        if self.sync_records < LONG_MAX:
            within = f"{within} or {self.sync_records} records of a partition"
        return (
            "An acknowledged write is in the page cache, with acks=all on every in-sync replica, and synced "
            f"{within}: a crash loses nothing, a power cut of all in-sync replicas at once at most that."
        )


SYNCED: Final = DurabilityPromise()
