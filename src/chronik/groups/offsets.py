"""Committed offsets of one group: where a consumer resumes after a restart.

Transactional commits are pending, by producer id, until the transaction's marker. The marker then commits or
drops them (KIP-98). A late marker must not overwrite a later commit: each value carries the offset of its
own record in `__consumer_offsets`, and the higher one wins.

What is kept here is counted: anybody can commit under any group id.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from chronik.client_state import ClientState, Held
from chronik.model import NO_EPOCH, NO_OFFSET, TopicPartition


class OffsetAndMetadata(NamedTuple):
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    record_offset: int = NO_OFFSET
    """Where the record that says so is in `__consumer_offsets`."""
    expire_timestamp_ms: int = -1
    """Only in commits of clients that asked for a retention time of their own (OffsetCommit v2 to v4)."""


GROUP_BYTES: Final = 700
"""A group's own objects, without its id."""
OFFSET_BYTES: Final = 500
"""The objects of one committed offset, with as much metadata as clients usually send."""
METADATA_BYTES_USUAL: Final = 128


def offset_bytes(tp: TopicPartition, committed: OffsetAndMetadata | None) -> int:
    """What a committed offset takes; does not change with metadata of the usual length."""
    if committed is None:
        return 0
    metadata_bytes = max(0, sys.getsizeof(committed.metadata) - METADATA_BYTES_USUAL)
    return OFFSET_BYTES + len(tp.topic) + metadata_bytes


class GroupOffsets:
    """The offsets of one group."""

    __slots__ = ("_committed", "_held", "_pending", "_unstable")

    def __init__(self, held: Held | None = None) -> None:
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: dict[int, dict[TopicPartition, OffsetAndMetadata]] = {}
        self._unstable: dict[TopicPartition, int] = {}
        """How many open transactions have each partition."""
        self._held = held or ClientState().committed_offsets.hold()

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
        return iter(self._committed.items())

    @property
    def is_empty(self) -> bool:
        return not self._committed and not self._pending

    def get(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        return self._committed.get(tp)

    def is_unstable(self, tp: TopicPartition) -> bool:
        """An open transaction may still change it; a fetch with require_stable has to wait."""
        return tp in self._unstable

    def growth_bytes(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], producer_id: int | None
    ) -> int:
        """What these commits need beyond what is kept for the same partitions.

        One open transaction may have a partition beside what is committed: that is how offsets change.
        """
        own = {} if producer_id is None else self._pending.get(producer_id, {})
        needed = 0
        for tp, committed in offsets.items():
            present = own.get(tp)
            if present is None and (producer_id is None or tp not in self._unstable):
                present = self._committed.get(tp)
            needed += max(0, offset_bytes(tp, committed) - offset_bytes(tp, present))
        return needed

    def commit(self, tp: TopicPartition, committed: OffsetAndMetadata) -> None:
        self._held.add(offset_bytes(tp, committed) - offset_bytes(tp, self._committed.get(tp)))
        self._committed[tp] = committed

    def pend(self, producer_id: int, tp: TopicPartition, committed: OffsetAndMetadata) -> None:
        """Part of a transaction; replaces what the same transaction said before."""
        commits = self._pending.setdefault(producer_id, {})
        if tp not in commits:
            self._unstable[tp] = self._unstable.get(tp, 0) + 1
        self._held.add(offset_bytes(tp, committed) - offset_bytes(tp, commits.get(tp)))
        commits[tp] = committed

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for tp, committed in self._pending.pop(producer_id, {}).items():
            self._no_longer_pending(tp, committed)
            present = self._committed.get(tp)
            if commit and (present is None or present.record_offset < committed.record_offset):
                self.commit(tp, committed)

    def _no_longer_pending(self, tp: TopicPartition, committed: OffsetAndMetadata) -> None:
        self._held.add(-offset_bytes(tp, committed))
        self._unstable[tp] -= 1
        if not self._unstable[tp]:
            del self._unstable[tp]

    def delete(self, tp: TopicPartition) -> bool:
        """Forget it, as after a tombstone. False: there was nothing."""
        for producer_id in [key for key, commits in self._pending.items() if tp in commits]:
            self._no_longer_pending(tp, self._pending[producer_id].pop(tp))
            if not self._pending[producer_id]:
                del self._pending[producer_id]
        gone = self._committed.pop(tp, None)
        self._held.add(-offset_bytes(tp, gone))
        return gone is not None

    def clear(self) -> None:
        """Forget everything."""
        for tp in {*self._committed, *self._unstable}:
            self.delete(tp)

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
