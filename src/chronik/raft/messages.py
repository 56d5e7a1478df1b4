"""What Raft nodes say to each other, and the bytes for it.

Every message carries its sender's term; `fence` decides by it what a message may do.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from chronik.model import NodeId, PeerError
from chronik.raft.entries import Entry, Snapshot

__all__ = [
    "FROM_LEADER",
    "AppendEntries",
    "AppendResponse",
    "Fence",
    "Heartbeat",
    "HeartbeatResponse",
    "InstallSnapshot",
    "InstallSnapshotResponse",
    "Message",
    "PreVoteRequest",
    "PreVoteResponse",
    "TimeoutNow",
    "VoteRequest",
    "VoteResponse",
    "decode",
    "encode",
]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    sender: NodeId
    to: NodeId
    term: int


class PreVoteRequest(_Message, frozen=True, kw_only=True):
    """Would you vote for me? `term` is the term the sender would run in, not the one it is in."""

    last_index: int
    last_term: int


class PreVoteResponse(_Message, frozen=True, kw_only=True):
    """Granted: `term` echoes the request. Refused: `term` is the answerer's own."""

    granted: bool


class VoteRequest(_Message, frozen=True, kw_only=True):
    last_index: int
    last_term: int
    transfer: bool = False
    """The leader itself asked for this election, so its lease does not stand in the way."""


class VoteResponse(_Message, frozen=True, kw_only=True):
    granted: bool
    heard_ago: float = 0.0
    """Seconds since the sender last answered a leader's heartbeat, or led. Set by the driver when the message
    is sent; 0 where it is not known, which is the safe answer."""


class AppendEntries(_Message, frozen=True, kw_only=True):
    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()


class AppendResponse(_Message, frozen=True, kw_only=True):
    index: int
    """Accepted: the follower's log is durably the leader's up to here.
    Rejected: the `prev_index` at which its log does not agree."""
    rejected: bool = False
    hint_index: int = 0
    """Rejected: the follower's last entry at or below `index` whose term is not above `prev_term`."""
    hint_term: int = 0
    applied: int = 0
    """The sender's applied index when the message is sent. Set by the driver; used for metrics only."""


class Heartbeat(_Message, frozen=True, kw_only=True):
    commit: int
    """Never beyond what the follower acknowledged, hence never beyond its log."""
    round: int
    """Read round (`reads`); the answer repeats it."""
    sent: float = 0.0
    """When the message was sent, by the leader's clock. The driver sets this and the lease fields."""
    lease: float | None = None
    """Start of the follower's lease, by the follower's clock; None if it is not known."""
    lease_index: int = 0
    """Last index of the leader's log. The follower holds the lease only once it has applied up to here."""


class HeartbeatResponse(_Message, frozen=True, kw_only=True):
    round: int
    sent: float = 0.0
    """When the message was sent, by the follower's clock. The driver sets this and `question`."""
    question: float | None = None
    """`sent` of the last heartbeat of this term."""


class InstallSnapshot(_Message, frozen=True, kw_only=True):
    snapshot: Snapshot


class InstallSnapshotResponse(_Message, frozen=True, kw_only=True):
    index: int


class TimeoutNow(_Message, frozen=True, kw_only=True):
    """Leadership transfer (thesis §3.10): run for election at once."""


class Fence(_Message, frozen=True, kw_only=True):
    """Your term is over: the answer to a leader of an older term. Carries nothing but the newer one."""


Message: TypeAlias = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendEntries
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | InstallSnapshot
    | InstallSnapshotResponse
    | TimeoutNow
    | Fence
)

FROM_LEADER = (AppendEntries, Heartbeat, InstallSnapshot, TimeoutNow)
"""Only a leader of `term` sends these, so they also tell who that leader is."""

# Stateless and safe to share between nodes and threads.
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PeerError(f"not a Raft message: {error}") from error
