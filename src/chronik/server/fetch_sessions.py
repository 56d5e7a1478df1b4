"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changed travels.

A session remembers what its consumer wants and what it was last sent; a response carries only partitions with
news. Sessions are bounded in number and in bytes: when there are too many, one that was quiet for
`EVICTION_S` gives way; if there is none, a consumer gets no session and goes on naming everything, as in
Kafka. Ids are drawn at random and a session belongs to whom it was opened for, so that nobody can use or
close another's.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from chronik.client_state import ClientState, Share
from chronik.model import ErrorCode, Limits, RequestError
from chronik.wire.fetch import FetchPartition, FetchRequest, FetchResult

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
EVICTION_S: Final = 120.0
"""Kafka's min.incremental.fetch.session.eviction.ms."""

SESSION_BYTES: Final = 1_000
PARTITION_BYTES: Final = 500
"""What a session and a partition in it take, about, without names."""

Key: TypeAlias = tuple[str, UUID, int]


@dataclass(slots=True)
class _LastSent:
    """What the last response said about a partition."""

    high_watermark: int = -1
    log_start_offset: int = -1
    failed: bool = False


class Owner(NamedTuple):
    """Whose a session is. Its connections may change, these do not."""

    principal: str
    host: str
    client_id: str | None


@dataclass(slots=True)
class FetchSession:
    session_id: int
    epoch: int
    owner: Owner
    used_s: float
    by_id: bool
    """Whether its topics have ids (version 13 and later) or names. That cannot change on the way."""
    wanted: OrderedDict[Key, FetchPartition] = field(default_factory=OrderedDict)
    last_sent: dict[Key, _LastSent] = field(default_factory=dict)
    size_bytes: int = 0

    def update(self, request: FetchRequest) -> None:
        for partition in request.partitions:
            key = (partition.topic, partition.topic_id, partition.partition)
            if key not in self.wanted:
                self.size_bytes += PARTITION_BYTES + len(partition.topic)
            self.wanted[key] = partition
        for gone in request.forgotten:
            key = (gone.topic, gone.topic_id, gone.partition)
            if self.wanted.pop(key, None) is not None:
                self.size_bytes -= PARTITION_BYTES + len(gone.topic)
            self.last_sent.pop(key, None)

    def has_news(self, result: FetchResult) -> bool:
        """Whether a result says anything the consumer does not know."""
        last_sent = self.last_sent.get((result.topic, result.topic_id, result.partition))
        return (
            last_sent is None
            or result.size_bytes > 0
            or result.error_code != ErrorCode.none
            or last_sent.failed
            or result.high_watermark != last_sent.high_watermark
            or result.log_start_offset != last_sent.log_start_offset
            or result.preferred_read_replica >= 0
            or result.diverging is not None
        )

    def remember(self, results: list[FetchResult]) -> None:
        """Note what goes out; partitions that got data go to the end, so that all get their turn."""
        for result in results:
            key = (result.topic, result.topic_id, result.partition)
            self.last_sent[key] = _LastSent(
                result.high_watermark, result.log_start_offset, result.error_code != ErrorCode.none
            )
            if result.size_bytes and key in self.wanted:
                self.wanted.move_to_end(key)


def _random_id() -> int:
    return secrets.randbelow(_EPOCH_MAX) + 1


class FetchSessions:
    def __init__(
        self,
        limits: Limits | None = None,
        new_id: Callable[[], int] = _random_id,
        share: Share | None = None,
    ) -> None:
        limits = limits or Limits()
        self._max = limits.fetch_sessions_max
        self._share = share or ClientState().fetch_sessions
        self._held = self._share.hold()
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.partitions = 0
        """In all sessions together."""
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, request: FetchRequest, owner: Owner, *, now_s: float, by_id: bool = False
    ) -> FetchSession | None:
        """The session that a request belongs to; None if it wants none or gets none. RequestError if it is
        not there, is somebody else's, or names topics the other way."""
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != owner:
            session = None
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session is not None:
                self._drop(session)
            is_last = request.session_epoch == FINAL_EPOCH
            return None if is_last else self._create(request, owner, by_id, now_s)
        if session is None:
            raise RequestError(ErrorCode.fetch_session_id_not_found)
        if request.session_epoch != session.epoch:
            raise RequestError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != by_id:
            raise RequestError(ErrorCode.fetch_session_topic_id_error)
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        session.used_s = now_s
        self._sessions.move_to_end(request.session_id)
        self._update(session, request)
        if not self._share.has_room(0):
            self._share.note_refusal()
            self._drop(session)  # its consumer starts over, with a session if there is room
            raise RequestError(ErrorCode.fetch_session_id_not_found)
        return session

    def _create(self, request: FetchRequest, owner: Owner, by_id: bool, now_s: float) -> FetchSession | None:
        size_bytes = SESSION_BYTES + len(owner.client_id or "")
        session = FetchSession(0, 1, owner, now_s, by_id, size_bytes=size_bytes)
        session.update(request)
        while len(self._sessions) >= self._max or not self._share.has_room(session.size_bytes):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_s - oldest.used_s < EVICTION_S:
                self._share.note_refusal()
                return None
            self._drop(oldest)
            self.evicted += 1
        session.session_id = self._new_id()
        while session.session_id in self._sessions:
            session.session_id = self._new_id()
        self._sessions[session.session_id] = session
        self._count(len(session.wanted), session.size_bytes)
        return session

    def _update(self, session: FetchSession, request: FetchRequest) -> None:
        partitions, size_bytes = len(session.wanted), session.size_bytes
        session.update(request)
        self._count(len(session.wanted) - partitions, session.size_bytes - size_bytes)

    def _drop(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self._count(-len(session.wanted), -session.size_bytes)

    def _count(self, partitions: int, size_bytes: int) -> None:
        self.partitions += partitions
        self._held.add(size_bytes)
