"""Where two logs of a partition agree, by their epoch histories (KIP-101, KIP-279).

Batches of one leader epoch at one offset are the same everywhere: one leader wrote them. So two logs are
equal exactly as far as their histories (epoch, first offset) tell the same story.
"""

from __future__ import annotations

from collections.abc import Sequence

from chronik.links.frames import LogPosition, Start


def _from(epochs: Sequence[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """The history as seen from `start` on: the epoch in force there begins there."""
    before = [epoch for epoch, first in epochs if first <= start]
    behind = [(epoch, first) for epoch, first in epochs if first > start]
    return [(before[-1], start), *behind] if before else behind


def where_to_start(leader: LogPosition, follower: LogPosition) -> Start:
    """The offset from which the follower is fed, after it dropped whatever it has from there on."""
    if follower.log_end_offset < leader.log_start_offset:
        return Start(leader.log_start_offset, True)
    start = max(leader.log_start_offset, follower.log_start_offset)
    if start > leader.log_end_offset:
        return Start(leader.log_end_offset, False)
    ours, theirs = _from(leader.epochs, start), _from(follower.epochs, start)
    agreed = 0
    while agreed < len(ours) and agreed < len(theirs) and ours[agreed] == theirs[agreed]:
        agreed += 1
    if not agreed and follower.log_start_offset < leader.log_start_offset:
        # The follower's records before the leader's log start may come from a deposed leader, and there is
        # nothing left to compare them with. All others have deleted them.
        return Start(leader.log_start_offset, True)
    our_end = ours[agreed][1] if agreed < len(ours) else leader.log_end_offset
    their_end = theirs[agreed][1] if agreed < len(theirs) else follower.log_end_offset
    return Start(max(min(our_end, their_end), start), False)
