"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changed travels.

A session remembers what its consumer wants and what it was last told; a response carries only partitions with
news. Sessions are bounded: when there are too many, the one that was quiet longest goes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from chronik.model import ErrorCode, RequestError
from chronik.wire.fetch import FetchPartition, FetchRequest, FetchResult

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1

Key: TypeAlias = tuple[str, UUID, int]


@dataclass(slots=True)
class _Told:
    """What the last response said about a partition."""

    high_watermark: int = -1
    log_start_offset: int = -1
    failed: bool = False


@dataclass(slots=True)
class FetchSession:
    session_id: int
    epoch: int
    wanted: OrderedDict[Key, FetchPartition] = field(default_factory=OrderedDict)
    told: dict[Key, _Told] = field(default_factory=dict)

    def update(self, request: FetchRequest) -> None:
        for partition in request.partitions:
            self.wanted[partition.topic, partition.topic_id, partition.partition] = partition
        for gone in request.forgotten:
            key = (gone.topic, gone.topic_id, gone.partition)
            self.wanted.pop(key, None)
            self.told.pop(key, None)

    def has_news(self, result: FetchResult) -> bool:
        """Whether a result says anything the consumer does not know."""
        told = self.told.get((result.topic, result.topic_id, result.partition))
        return (
            told is None
            or result.size_bytes > 0
            or result.error_code != ErrorCode.none
            or told.failed
            or result.high_watermark != told.high_watermark
            or result.log_start_offset != told.log_start_offset
            or result.preferred_read_replica >= 0
            or result.diverging is not None
        )

    def remember(self, results: list[FetchResult]) -> None:
        """Note what goes out; partitions that got data go to the end, so that all get their turn."""
        for result in results:
            key = (result.topic, result.topic_id, result.partition)
            self.told[key] = _Told(
                result.high_watermark, result.log_start_offset, result.error_code != ErrorCode.none
            )
            if result.size_bytes and key in self.wanted:
                self.wanted.move_to_end(key)


class FetchSessions:
    def __init__(self, sessions_max: int = 1_000) -> None:
        self._max = sessions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest) -> FetchSession | None:
        """The session that a request belongs to; None if it wants none. RequestError if it is not there."""
        if request.session_epoch == FINAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return None
        if request.session_epoch == INITIAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return self._create(request)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise RequestError(ErrorCode.fetch_session_id_not_found)
        if request.session_epoch != session.epoch:
            raise RequestError(ErrorCode.invalid_fetch_session_epoch)
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        self._sessions.move_to_end(request.session_id)
        session.update(request)
        return session

    def _create(self, request: FetchRequest) -> FetchSession:
        while len(self._sessions) >= self._max:
            self._sessions.popitem(last=False)
        self._last_id = self._last_id % _EPOCH_MAX + 1
        session = FetchSession(self._last_id, 1)
        session.update(request)
        self._sessions[session.session_id] = session
        return session
