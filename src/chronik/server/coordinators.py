"""Where coordinators are: the leaders of the internal topics' partitions. Makes those topics when needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chronik.metadata.values import Topic
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition
from chronik.server.internal_topics import CONFIGS, mend_internal_topic
from chronik.server.services import Services
from chronik.server.topics import plan_topic, submit_topic

__all__ = ["REPLICATION_FACTOR", "CoordinatorAddress", "ensure_internal_topic", "find_coordinator"]

REPLICATION_FACTOR: Final = 3
"""Replication factor of internal topics, at most one per broker (Kafka: offsets.topic.replication.factor)."""
MIN_INSYNC_REPLICAS: Final = 2


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    node_id: NodeId
    host: str
    port: int


async def ensure_internal_topic(services: Services, name: str, partitions: int) -> Topic:
    """The topic, created if it is not there yet."""
    topic = services.state.topics.get(name)
    if topic is not None:
        await mend_internal_topic(services, topic)
        return topic
    factor = min(REPLICATION_FACTOR, len(services.state.live_brokers()))
    if factor == 0:
        raise RequestError(ErrorCode.coordinator_not_available, "There is no broker to hold a group's state.")
    # One copy is not enough to decide a transaction by, where there can be more.
    configs = {**CONFIGS, "min.insync.replicas": str(min(factor, MIN_INSYNC_REPLICAS))}
    plan = plan_topic(
        services,
        name,
        partitions=partitions,
        replication_factor=factor,
        configs=dict(configs),
        is_internal=True,
    )
    topic = await submit_topic(services, plan)
    if topic is None:
        raise RequestError(ErrorCode.coordinator_not_available)
    return topic


async def find_coordinator(
    services: Services, tp: TopicPartition, partitions: int, endpoint: str
) -> CoordinatorAddress:
    """The broker that leads this partition, at the listener that the client came by.

    RequestError(coordinator_not_available) if none leads it now.
    """
    topic = await ensure_internal_topic(services, tp.topic, partitions)
    await services.presence.settled((topic.partitions[tp.partition].leader,))
    leader = services.state.topics.get(tp.topic, topic).partitions[tp.partition].leader
    broker = services.state.brokers.get(leader)
    kafka = None if broker is None else broker.endpoints.get(endpoint)
    if broker is None or kafka is None or broker.fenced:
        raise RequestError(ErrorCode.coordinator_not_available, f"{tp} has no leader.")
    return CoordinatorAddress(broker.broker_id, kafka.host, kafka.port)
