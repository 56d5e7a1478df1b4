"""Where coordinators are: the leaders of the internal topics' partitions. Makes those topics when needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chronik.metadata.values import Topic
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition
from chronik.server.services import Services
from chronik.server.topics import plan_topic

__all__ = ["Coordinator", "ensure_internal_topic", "find_coordinator"]

REPLICATION_FACTOR: Final = 3
"""Of internal topics, where there are so many brokers (Kafka: offsets.topic.replication.factor)."""
MIN_INSYNC_REPLICAS: Final = 2
_CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 * 1024 * 1024)}


@dataclass(frozen=True, slots=True)
class Coordinator:
    node_id: NodeId
    host: str
    port: int


async def ensure_internal_topic(services: Services, name: str, partitions: int) -> Topic:
    """The topic, created if it is not there yet."""
    topic = services.state.topics.get(name)
    if topic is not None:
        return topic
    factor = min(REPLICATION_FACTOR, len(services.state.live_brokers()))
    if factor == 0:
        raise RequestError(ErrorCode.coordinator_not_available, "There is no broker to hold a group's state.")
    # One copy is not enough to decide a transaction by, where there can be more.
    configs = {**_CONFIGS, "min.insync.replicas": str(min(factor, MIN_INSYNC_REPLICAS))}
    plan = plan_topic(services, name, partitions=partitions, replication_factor=factor, configs=dict(configs))
    try:
        await services.metadata.submit(plan)
    except RequestError as error:
        # Somebody else was quicker.
        if error.code != ErrorCode.topic_already_exists:
            raise
    topic = services.state.topics.get(name)
    if topic is None:
        raise RequestError(ErrorCode.coordinator_not_available)
    return topic


async def find_coordinator(services: Services, tp: TopicPartition, partitions: int) -> Coordinator:
    """The broker that leads this partition; RequestError(coordinator_not_available) if none does now."""
    topic = await ensure_internal_topic(services, tp.topic, partitions)
    await services.presence.settled((topic.partitions[tp.partition].leader,))
    leader = services.state.topics.get(tp.topic, topic).partitions[tp.partition].leader
    broker = services.state.brokers.get(leader)
    kafka = None if broker is None else broker.endpoints.get("kafka")
    if broker is None or kafka is None or broker.fenced:
        raise RequestError(ErrorCode.coordinator_not_available, f"{tp} has no leader.")
    return Coordinator(broker.broker_id, kafka.host, kafka.port)
