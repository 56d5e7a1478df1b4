"""What the cluster's state is made of. Values: replaced, never altered."""

from __future__ import annotations

from uuid import UUID

import msgspec

from chronik.metadata.commands import Endpoint, RemoteLog
from chronik.metadata.events import Event
from chronik.model import ErrorCode, NodeId

__all__ = ["Broker", "Outcome", "PartitionRegistration", "Refusal", "Refused", "Topic"]


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: NodeId
    incarnation: UUID
    epoch: int
    """Index of the registration in the metadata log; a newer start of the same broker has a higher one."""
    endpoints: dict[str, Endpoint]
    rack: str | None
    fenced: bool
    resigned: bool = False
    """The broker said that it stops; only a new registration brings it back."""
    draining: bool = False
    """The broker is being emptied: it gets no new replicas."""
    votes: bool | None = None
    """Whether an operator wants it to vote on metadata; None leaves that to the controller."""


class PartitionRegistration(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    """Never empty: the last member stays, even when it is gone, because only it has every record."""
    leader: NodeId
    leader_epoch: int = 0
    partition_epoch: int = 0
    """Goes up with every change of this partition."""
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()
    remote: RemoteLog | None = None
    """What of it is in the object store; None as long as nothing ever was."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: UUID
    partitions: tuple[PartitionRegistration, ...]
    configs: dict[str, str]


class Refused(msgspec.Struct, frozen=True):
    code: ErrorCode
    message: str


class Refusal(Exception):
    """Leaves a command's checks; never leaves `ClusterState.apply`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.refused = Refused(code, message)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a committed command did: events, or a refusal and no events."""

    index: int
    events: tuple[Event, ...] = ()
    refused: Refused | None = None
    value: int | None = None
    parts: tuple[Outcome, ...] = ()
    """One per command of a Batch."""
