"""Leader-epoch fencing of client requests (KIP-320)."""

from __future__ import annotations

from chronik.model import NO_EPOCH, ErrorCode, RequestError

__all__ = ["check_leader_epoch"]


def check_leader_epoch(ours: int, theirs: int) -> None:
    """Refuse a client that knows an older leader epoch than we do, or a newer one."""
    if theirs == NO_EPOCH:
        return
    if theirs < ours:
        raise RequestError(ErrorCode.fenced_leader_epoch)
    if theirs > ours:
        raise RequestError(ErrorCode.unknown_leader_epoch)
