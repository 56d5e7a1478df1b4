"""Events on the bus: immutable values that say what changed, with the fields that subscribers need."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

import msgspec

from chronik.model import NodeId, TopicPartition

__all__ = [
    "BrokerFenced",
    "BrokerRegistered",
    "BrokerUnfenced",
    "BrokerUnregistered",
    "CertificatesReloaded",
    "ConfigChanged",
    "Event",
    "HighWatermarkUpdated",
    "IsrChanged",
    "LeaderChanged",
    "LevelRaised",
    "NodeAdmitted",
    "PartitionAssigned",
    "PeerDisconnected",
    "QuorumChanged",
    "RemoteLogChanged",
    "RemovedFromCluster",
    "Resync",
    "SecurityChanged",
    "TopicCreated",
    "TopicDeleted",
]


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True):
    """Followed by a PartitionAssigned for each partition."""

    topic: str
    topic_id: UUID


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: UUID
    partition_count: int


class PartitionAssigned(msgspec.Struct, frozen=True, kw_only=True):
    """A new partition, or an old one whose replicas are new or on the move; leadership is part of it."""

    tp: TopicPartition
    topic_id: UUID
    replicas: tuple[NodeId, ...]
    previous: tuple[NodeId, ...] | None
    """The replicas before; None if the partition is new."""


class LeaderChanged(msgspec.Struct, frozen=True, kw_only=True):
    tp: TopicPartition
    topic_id: UUID
    leader: NodeId
    leader_epoch: int


class IsrChanged(msgspec.Struct, frozen=True, kw_only=True):
    tp: TopicPartition
    topic_id: UUID
    isr: tuple[NodeId, ...]
    previous: tuple[NodeId, ...]


class RemoteLogChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Another manifest counts, or the log starts later."""

    tp: TopicPartition
    topic_id: UUID


class BrokerRegistered(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: NodeId
    broker_epoch: int


class BrokerFenced(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: NodeId


class BrokerUnfenced(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: NodeId


class BrokerUnregistered(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: NodeId


class NodeAdmitted(msgspec.Struct, frozen=True, kw_only=True):
    """A node that had been removed may register again."""

    broker_id: NodeId


class LevelRaised(msgspec.Struct, frozen=True, kw_only=True):
    """An upgrade was finalized."""

    level: int


class ConfigChanged(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: int
    name: str


class SecurityChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials, ACLs, quotas or delegation tokens changed: cached decisions are void."""

    what: str


class HighWatermarkUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """Not from the metadata log: published by the partition's leader or follower on this node."""

    tp: TopicPartition
    high_watermark: int


class PeerDisconnected(msgspec.Struct, frozen=True, kw_only=True):
    """Not from the metadata log: the last connection between this node and another one broke."""

    node_id: NodeId


class CertificatesReloaded(msgspec.Struct, frozen=True, kw_only=True):
    """Not from the metadata log: the Kafka listeners of this node show another certificate, and its clients
    believe others."""


class QuorumChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The members of the Raft quorum are others now."""


class RemovedFromCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Not from the metadata log: this node found out that the cluster took it out while it ran."""


class Resync(msgspec.Struct, frozen=True, kw_only=True):
    """Events were lost (the subscriber lagged, or a snapshot was installed): look at the whole state."""


Event: TypeAlias = (
    TopicCreated
    | TopicDeleted
    | PartitionAssigned
    | LeaderChanged
    | LevelRaised
    | IsrChanged
    | RemoteLogChanged
    | BrokerRegistered
    | BrokerFenced
    | BrokerUnfenced
    | BrokerUnregistered
    | NodeAdmitted
    | ConfigChanged
    | SecurityChanged
    | HighWatermarkUpdated
    | CertificatesReloaded
    | PeerDisconnected
    | QuorumChanged
    | RemovedFromCluster
    | Resync
)
