"""What nodes tell about a group of any type. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from chronik.model import NodeId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str
    group_type: str
    """classic or consumer (KIP-848). Apache Kafka also has share and streams groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    tasks: tuple[str, ...] = ()
    """Tasks of a member of a streams group, as Kafka Streams writes them: 0_1, and 0_2 (standby)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    group_id: str
    state: str
    group_type: str
    assignor: str
    coordinator_id: NodeId
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
