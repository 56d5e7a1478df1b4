"""Committed offsets of one group: what a consumer that starts anew goes on from.

Commits of a transaction wait under their producer id until the transaction's marker; then they count or
vanish (KIP-98). A committed value never goes back behind a later commit because of a late marker: each
value knows the offset of its own record in `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from chronik.model import NO_EPOCH, NO_OFFSET, TopicPartition


class Committed(NamedTuple):
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    record_offset: int = NO_OFFSET
    """Where the record that says so is in `__consumer_offsets`."""
    expire_timestamp_ms: int = -1
    """Only in commits of clients that asked for a retention time of their own (OffsetCommit v2 to v4)."""


class GroupOffsets:
    """The offsets of one group."""

    __slots__ = ("_committed", "_pending")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, Committed] = {}
        self._pending: dict[int, dict[TopicPartition, Committed]] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[tuple[TopicPartition, Committed]]:
        return iter(self._committed.items())

    @property
    def is_empty(self) -> bool:
        return not self._committed and not self._pending

    def get(self, tp: TopicPartition) -> Committed | None:
        return self._committed.get(tp)

    def is_unstable(self, tp: TopicPartition) -> bool:
        """An open transaction may still change it; a fetch with require_stable has to wait."""
        return any(tp in commits for commits in self._pending.values())

    def commit(self, tp: TopicPartition, committed: Committed) -> None:
        self._committed[tp] = committed

    def pend(self, producer_id: int, tp: TopicPartition, committed: Committed) -> None:
        """Part of a transaction; replaces what the same transaction said before."""
        self._pending.setdefault(producer_id, {})[tp] = committed

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for tp, committed in self._pending.pop(producer_id, {}).items():
            present = self._committed.get(tp)
            if commit and (present is None or present.record_offset < committed.record_offset):
                self._committed[tp] = committed

    def pending_producers(self) -> Iterable[int]:
        return self._pending.keys()

    def delete(self, tp: TopicPartition) -> bool:
        """Forget it, as after a tombstone. False: there was nothing."""
        for producer_id in [key for key, commits in self._pending.items() if tp in commits]:
            del self._pending[producer_id][tp]
            if not self._pending[producer_id]:
                del self._pending[producer_id]
        return self._committed.pop(tp, None) is not None

    def expired(
        self,
        *,
        now_ms: int,
        retention_ms: int,
        empty_since_ms: int | None,
        is_subscribed: Callable[[str], bool],
    ) -> list[TopicPartition]:
        """What may be forgotten (KIP-211): the caller writes tombstones, then calls `delete`.

        `empty_since_ms`: None while the group has members; those keep the offsets of topics they read.
        A group that never had members (only commits) passes 0.
        """
        gone = []
        for tp, committed in self._committed.items():
            if self.is_unstable(tp) or (empty_since_ms is None and is_subscribed(tp.topic)):
                continue
            if committed.expire_timestamp_ms >= 0:
                deadline_ms = committed.expire_timestamp_ms
            else:
                deadline_ms = max(committed.commit_timestamp_ms, empty_since_ms or 0) + retention_ms
            if deadline_ms <= now_ms:
                gone.append(tp)
        return gone
