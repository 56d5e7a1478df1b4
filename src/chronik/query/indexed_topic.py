"""A searchable topic: its index, the tails of its partitions, and how far each is indexed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chronik.query.index import TopicIndex
from chronik.query.tail import Tail

COMMIT_SECONDS: Final = 0.3
COMMIT_SECONDS_MAX: Final = 2.0
LEFT_PER_SECOND: Final = 100_000
"""The next commit waits one more second for each batch of this many records that are left to index."""
COMMIT_RECORDS: Final = 500_000
"""Commit at once when this many records wait for it."""


@dataclass(slots=True)
class IndexedTopic:
    """A searchable topic and how far its index is."""

    name: str
    topic_id: str
    index: TopicIndex
    positions: dict[int, int] = field(default_factory=dict)
    """What was added; the index finds it after the next commit."""
    tails: dict[int, Tail] = field(default_factory=dict)
    targets: dict[int, int] = field(default_factory=dict)
    """A partition is ready once it has reached the end that the log had when indexing began."""
    starts: dict[int, int] = field(default_factory=dict)
    """Log start offsets. Documents before them are not found, and will be deleted from the index."""
    documents: dict[int, int] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)
    rechecked: dict[int, int] = field(default_factory=dict)
    recount: set[int] = field(default_factory=set)
    """Partitions that lost documents since the last commit."""
    committed_at: float = 0.0
    is_gone: bool = False
    """Whether its index was thrown away."""

    @property
    def by_partition(self) -> tuple[dict[int, Any], ...]:
        kept = self.positions, self.tails, self.targets, self.starts, self.documents
        return *kept, self.replaced, self.rechecked

    @property
    def committed(self) -> Mapping[int, int]:
        """Up to where the index finds everything."""
        return self.index.snapshot.reached

    def is_ready(self, partition: int) -> bool:
        return partition in self.committed and self.committed[partition] >= self.targets.get(partition, 0)

    def learn_start(self, partition: int, start: int) -> None:
        """The log start has moved. Ignored for partitions that are not indexed here."""
        if start > self.starts.get(partition, start):
            self.starts[partition] = start
            self.tails[partition].skip_to(start)

    @property
    def is_behind(self) -> bool:
        return any(tail.next_part(self.positions[number]) for number, tail in self.tails.items())

    def is_due(self, now: float) -> bool:
        """Commits are rarer while more is left to index: each one stops indexing, and its segments must be
        merged later."""
        left = sum(tail.position - self.positions[number] for number, tail in self.tails.items())
        seconds = min(COMMIT_SECONDS + left / LEFT_PER_SECOND, COMMIT_SECONDS_MAX)
        return now - self.committed_at >= seconds or self.index.pending >= COMMIT_RECORDS
