"""The topics that members of KIP-848 groups want and may see. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from chronik.groups.assignors import Partitions

NAME_OVERHEAD_BYTES: Final = 60


Visible: TypeAlias = Callable[[frozenset[str]], frozenset[str]]
"""Of the given topics, returns those that a member may see. Returns the same object for the same topics until
the member's rights change."""


class TopicSize(NamedTuple):
    topic_id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class Topics:
    """The cluster's topics; `version` changes whenever they do."""

    version: int
    by_name: Mapping[str, TopicSize]
    matched: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For every regular expression of the group, the topics that it matches: see patterns.py."""


def held_matches(matched: frozenset[str], target: Mapping[str, Partitions], topics: Topics) -> frozenset[str]:
    """The matched topics that the group has already. Used for a replayed member, since what it may see is not
    known before its heartbeat."""
    held = {topic_id for partitions in target.values() for topic_id, _ in partitions}
    return frozenset(name for name in matched if topics.by_name[name].topic_id in held)


def subscription_bytes(topic_names: tuple[str, ...] | None) -> int:
    return sum(NAME_OVERHEAD_BYTES + len(name) for name in topic_names or ())


def texts_bytes(*texts: str | None) -> int:
    return sum(len(text) for text in texts if text is not None)
