"""What a client knows about the cluster: nodes, topics, leaders. Values only, no I/O."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from chronik.client.options import BrokerAddress
from chronik.model import NO_LEADER, ErrorCode, NodeId, TopicPartition

if TYPE_CHECKING:
    from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponseTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    partition: int
    leader_id: NodeId
    leader_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    offline_replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    error_code: ErrorCode
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    node_id: NodeId
    address: BrokerAddress
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    cluster_id: str | None = None
    controller_id: NodeId = NO_LEADER
    nodes: Mapping[NodeId, NodeInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    """Only the topics that were asked for; absent ones carry their error code."""

    def leader_of(self, tp: TopicPartition) -> NodeId:
        """The leader, or NO_LEADER when the topic, the partition or its leader is not known."""
        topic = self.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        if partition is None or partition.leader_id not in self.nodes:
            return NO_LEADER
        return partition.leader_id

    def merged(self, response: MetadataResponse, *, whole: bool) -> Metadata:
        """This knowledge with a Metadata response laid over it; `whole` forgets topics it does not name."""
        topics = {} if whole else dict(self.topics)
        for topic in response.topics:
            if topic.name is not None:
                topics[topic.name] = _not_older(_topic_info(topic), self.topics.get(topic.name))
        return Metadata(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            nodes={
                node.node_id: NodeInfo(
                    node_id=node.node_id, address=BrokerAddress(node.host, node.port), rack=node.rack
                )
                for node in response.brokers
            },
            topics=topics,
        )


def _not_older(received: TopicInfo, known: TopicInfo | None) -> TopicInfo:
    """A node that is cut off, or was paused, tells of leaders of the past: nobody goes back (KIP-320).

    Such a leader lacks what its successor committed: a reader's own position would be out of range there.
    """
    if known is None or known.topic_id != received.topic_id:
        return received
    newer = {
        number: partition
        for number, partition in known.partitions.items()
        if number in received.partitions
        and partition.leader_epoch > received.partitions[number].leader_epoch >= 0
    }
    return replace(received, partitions={**received.partitions, **newer}) if newer else received


def _topic_info(topic: MetadataResponseTopic) -> TopicInfo:
    partitions: dict[int, PartitionInfo] = {
        partition.partition_index: PartitionInfo(
            partition=partition.partition_index,
            leader_id=partition.leader_id,
            leader_epoch=getattr(partition, "leader_epoch", -1),
            replicas=tuple(partition.replica_nodes),
            isr=tuple(partition.isr_nodes),
            offline_replicas=tuple(getattr(partition, "offline_replicas", ())),
        )
        for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    }
    return TopicInfo(
        name=topic.name or "",
        topic_id=getattr(topic, "topic_id", None),
        is_internal=topic.is_internal,
        error_code=topic.error_code,
        partitions=partitions,
    )
