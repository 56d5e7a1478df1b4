"""One member of a classic group, as its group sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chronik.groups.classic_messages import (
    Answer,
    Join,
    JoinResult,
    Protocols,
    SavedMember,
    SyncResult,
    Token,
)
from chronik.model import ErrorCode

MEMBER_OVERHEAD_BYTES: Final = 1_000
"""A member's own objects."""


def protocols_bytes(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None
    deadline_ms: int = 0
    """End of the session: the member expires then unless it sends a request. Not checked while a JoinGroup or
    SyncGroup of a member that had a generation before waits for its answer."""
    is_new: bool = True
    """Never got a generation yet."""
    has_synced: bool = False

    def size_bytes(self) -> int:
        """What it makes a node remember, about."""
        texts = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        return (
            MEMBER_OVERHEAD_BYTES
            + sum(map(len, texts))
            + protocols_bytes(self.protocols)
            + len(self.assignment)
        )

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    @classmethod
    def joining(cls, join: Join, member_id: str) -> Member:
        return cls(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
        )

    def update(self, join: Join) -> None:
        """Take over what the member says as it joins again."""
        self.protocols = join.protocols
        self.client_id, self.client_host = join.client_id, join.client_host
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms

    def refuse_waiting(self, code: ErrorCode) -> list[Answer]:
        """Answers to its waiting JoinGroup and SyncGroup; none waits any longer."""
        answers = []
        if self.join_token is not None:
            answers.append(Answer(self.join_token, JoinResult(error=code, member_id=self.member_id)))
            self.join_token = None
        if self.sync_token is not None:
            answers.append(Answer(self.sync_token, SyncResult(error=code)))
            self.sync_token = None
        return answers

    def saved(self, protocol: str | None) -> SavedMember:
        return SavedMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )

    @classmethod
    def restore(cls, saved: SavedMember, protocol: str | None, *, now_ms: int) -> Member:
        return cls(
            member_id=saved.member_id,
            instance_id=saved.instance_id,
            client_id=saved.client_id,
            client_host=saved.client_host,
            session_timeout_ms=saved.session_timeout_ms,
            rebalance_timeout_ms=saved.rebalance_timeout_ms,
            protocols=((protocol or "", saved.subscription),),
            assignment=saved.assignment,
            deadline_ms=now_ms + saved.session_timeout_ms,
            is_new=False,
            has_synced=True,
        )
