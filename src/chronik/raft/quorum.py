"""Majorities: how far a set of voters agrees, and whether an election is decided."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from chronik.model import NodeId

__all__ = ["VoteResult", "agreed_value", "majority", "tally"]


Value = TypeVar("Value", int, float)


class VoteResult(enum.Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: Collection[NodeId]) -> int:
    return len(voters) // 2 + 1


def agreed_value(voters: Collection[NodeId], value_of: Callable[[NodeId], Value]) -> Value:
    """The highest value that a majority of the voters has reached; 0 without voters."""
    if not voters:
        return 0
    return sorted(map(value_of, voters), reverse=True)[majority(voters) - 1]


def tally(voters: Collection[NodeId], votes: Mapping[NodeId, bool]) -> VoteResult:
    """Count only voters; who has not answered may still go either way."""
    granted = sum(1 for node in voters if votes.get(node) is True)
    refused = sum(1 for node in voters if votes.get(node) is False)
    if voters and granted >= majority(voters):
        return VoteResult.WON
    if len(voters) - refused < majority(voters):
        return VoteResult.LOST
    return VoteResult.PENDING
