"""Fetch sessions: whose they are, how many there are, and who gives way."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest

from chronik.client_state import Share
from chronik.model import ErrorCode, Limits, RequestError
from chronik.server.fetch_sessions import (
    EVICTION_S,
    PARTITION_BYTES,
    SESSION_BYTES,
    FetchSession,
    FetchSessions,
    Owner,
)
from chronik.wire.fetch import FetchPartition, FetchRequest

MINE = Owner("User:ANONYMOUS", "10.0.0.1", "mine")
OTHERS = (
    Owner("User:mallory", "10.0.0.1", "mine"),
    Owner("User:ANONYMOUS", "10.0.0.2", "mine"),
    Owner("User:ANONYMOUS", "10.0.0.1", "other"),
)


def request(session_id: int = 0, epoch: int = 0, partitions: int = 1) -> FetchRequest:
    wanted = [FetchPartition("t", UUID(int=0), number, 0, 100, -1, -1) for number in range(partitions)]
    return FetchRequest(-1, 0, 0, 1_000, 0, session_id, epoch, wanted, [], "")


def opened(
    sessions: FetchSessions, owner: Owner = MINE, now_s: float = 0.0, partitions: int = 1
) -> FetchSession:
    session = sessions.open(request(partitions=partitions), owner, now_s=now_s)
    assert session is not None
    return session


def refused(
    sessions: FetchSessions, session_id: int, epoch: int, owner: Owner, partitions: int = 1
) -> ErrorCode:
    with pytest.raises(RequestError) as caught:
        sessions.open(request(session_id, epoch, partitions), owner, now_s=0.0)
    return caught.value.code


def test_ids_cannot_be_guessed() -> None:
    sessions = FetchSessions()
    ids = [opened(sessions).session_id for _ in range(50)]
    steps = {later - earlier for earlier, later in itertools.pairwise(ids)}
    assert len(steps) == 49
    assert all(0 < one < 2**31 for one in ids)


@pytest.mark.parametrize("stranger", OTHERS)
def test_nobody_uses_or_closes_anothers_session(stranger: Owner) -> None:
    sessions = FetchSessions()
    session = opened(sessions)
    assert refused(sessions, session.session_id, 1, stranger) is ErrorCode.fetch_session_id_not_found
    assert sessions.open(request(session.session_id, -1), stranger, now_s=0.0) is None
    opened_by_stranger = sessions.open(request(session.session_id, 0), stranger, now_s=0.0)
    assert opened_by_stranger is not None
    assert opened_by_stranger is not session
    assert sessions.open(request(session.session_id, 1), MINE, now_s=0.0) is session
    assert sessions.open(request(session.session_id, -1), MINE, now_s=0.0) is None
    assert refused(sessions, session.session_id, 2, MINE) is ErrorCode.fetch_session_id_not_found


def test_only_a_quiet_session_gives_way() -> None:
    sessions = FetchSessions(Limits(fetch_sessions_max=2))
    quiet, busy = opened(sessions), opened(sessions)
    assert sessions.open(request(), OTHERS[0], now_s=EVICTION_S - 1) is None  # it goes on without a session
    assert sessions.open(request(busy.session_id, 1), MINE, now_s=EVICTION_S - 1) is busy
    assert sessions.open(request(), OTHERS[0], now_s=EVICTION_S) is not None
    assert (len(sessions), sessions.evicted) == (2, 1)
    assert refused(sessions, quiet.session_id, 1, MINE) is ErrorCode.fetch_session_id_not_found
    assert sessions.open(request(busy.session_id, 2), MINE, now_s=EVICTION_S) is busy


def test_partitions_of_all_sessions_are_counted() -> None:
    share = Share("fetch_sessions", 2 * SESSION_BYTES + 10 * PARTITION_BYTES + 100)
    sessions = FetchSessions(share=share)
    first = opened(sessions, partitions=6)
    assert sessions.open(request(partitions=7), MINE, now_s=0.0) is None
    second = opened(sessions, partitions=4)
    assert sessions.partitions == 10
    sessions.open(request(first.session_id, -1), MINE, now_s=0.0)
    assert sessions.partitions == 4
    assert refused(sessions, second.session_id, 1, MINE, 14) is ErrorCode.fetch_session_id_not_found
    assert (sessions.partitions, len(sessions), share.held_bytes) == (0, 0, 0)
    assert share.refused == 2


def test_names_of_topics_count() -> None:
    """A session remembers what its consumer wants, also names that no topic has."""
    share = Share("fetch_sessions", 1_000_000)
    sessions = FetchSessions(share=share)
    wanted = [FetchPartition("x" * 30_000, UUID(int=0), number, 0, 100, -1, -1) for number in range(50)]
    assert sessions.open(FetchRequest(-1, 0, 0, 1_000, 0, 0, 0, wanted, [], ""), MINE, now_s=0.0) is None
    assert share.held_bytes == 0


@pytest.mark.parametrize("by_id", [True, False])
def test_topics_of_a_session_have_ids_or_names_to_its_end(by_id: bool) -> None:
    sessions = FetchSessions()
    session = sessions.open(request(), MINE, now_s=0.0, by_id=by_id)
    assert session is not None
    with pytest.raises(RequestError) as caught:
        sessions.open(request(session.session_id, 1), MINE, now_s=0.0, by_id=not by_id)
    assert caught.value.code is ErrorCode.fetch_session_topic_id_error
    assert sessions.open(request(session.session_id, 1), MINE, now_s=0.0, by_id=by_id) is session
