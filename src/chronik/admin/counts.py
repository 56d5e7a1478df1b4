"""Counters for metrics alone: metadata events and HTTP answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from chronik.metadata import events as e

__all__ = ["EventCounts", "HttpStats"]


@dataclass(slots=True)
class EventCounts:
    """Listens on the event bus; a replay at start is over before it does."""

    topics_created: int = 0
    topics_deleted: int = 0
    leader_changes: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0

    def on_event(self, event: e.Event) -> None:
        match event:
            case e.TopicCreated():
                self.topics_created += 1
            case e.TopicDeleted():
                self.topics_deleted += 1
            case e.LeaderChanged():
                self.leader_changes += 1
            case e.IsrChanged():
                if len(event.isr) < len(event.previous):
                    self.isr_shrinks += 1
                else:
                    self.isr_expands += 1
            case _:
                pass


@dataclass(slots=True)
class HttpStats:
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Counts answers by method and status."""
    refused: int = 0
    """Connections closed because there were too many."""
