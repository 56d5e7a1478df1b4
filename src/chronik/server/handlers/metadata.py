"""Metadata: brokers, topics, who leads what. Creates topics on first mention where that is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from chronik.metadata.state import ClusterState
from chronik.metadata.values import Broker, Partition, Topic
from chronik.model import NO_LEADER, ErrorCode, RequestError
from chronik.server.authorized import CLUSTER_OPERATIONS, NOT_REQUESTED, TOPIC_OPERATIONS
from chronik.server.dispatch import Reply, RequestContext, error_of, handles, reply
from chronik.server.topics import INTERNAL_TOPICS, check_topic_name, ensure_topic
from chronik.wire.api import ApiKey


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    topics = [
        {"error_code": code, "name": topic.name, "topic_id": getattr(topic, "topic_id", None)}
        for topic in request.topics or ()
    ]
    return reply(error_code=code, topics=topics)


@handles(ApiKey.METADATA, versions=(0, 13), on_error=_on_error, in_turn=True)
async def metadata(request: Any, ctx: RequestContext) -> Reply:
    services = ctx.services
    operations = (
        TOPIC_OPERATIONS if getattr(request, "include_topic_authorized_operations", False) else NOT_REQUESTED
    )
    await _settle(request, ctx)
    topics = await _topics(request, ctx)
    for topic in topics:
        topic["topic_authorized_operations"] = operations
    with_cluster = getattr(request, "include_cluster_authorized_operations", False)
    return reply(
        brokers=brokers_of(services.presence.brokers()),
        cluster_id=services.state.cluster_id,
        controller_id=services.controller_id(),
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS if with_cluster else NOT_REQUESTED,
    )


async def _settle(request: Any, ctx: RequestContext) -> None:
    """A leader that is asked about just died, it seems: the answer waits for what the cluster decides."""
    presence, state = ctx.services.presence, ctx.services.state
    doubted = presence.doubted()
    if not doubted:
        return
    topics: Iterable[Topic | None]
    if request.topics is None or (ctx.api_version == 0 and not request.topics):
        topics = state.topics.values()
    else:
        topics = (
            state.topics.get(wanted.name or "")
            if getattr(wanted, "topic_id", None) is None
            else state.topic_by_id(wanted.topic_id)
            for wanted in request.topics
        )
    await presence.settled(
        doubted.intersection(one.leader for topic in topics if topic is not None for one in topic.partitions)
    )


def brokers_of(brokers: Iterable[Broker]) -> list[dict[str, Any]]:
    """Brokers at the address they want clients to use."""
    return [
        {"node_id": broker.broker_id, "host": kafka.host, "port": kafka.port, "rack": broker.rack}
        for broker in brokers
        if (kafka := broker.endpoints.get("kafka")) is not None
    ]


async def _topics(request: Any, ctx: RequestContext) -> list[dict[str, Any]]:
    state = ctx.services.state
    # Version 0 had no null: there an empty list means all topics.
    if request.topics is None or (ctx.api_version == 0 and not request.topics):
        return [describe_topic(state, topic) for topic in state.topics.values()]
    create = ctx.services.settings.auto_create_topics and getattr(request, "allow_auto_topic_creation", True)
    described = []
    seen = set()
    for wanted in request.topics:
        topic_id: UUID | None = getattr(wanted, "topic_id", None)
        if topic_id is not None and ctx.api_version < 12:
            raise RequestError(ErrorCode.invalid_request, "Topic ids are understood from version 12 on.")
        key = topic_id or wanted.name
        if key in seen:
            continue
        seen.add(key)
        described.append(
            await _by_id(ctx, topic_id) if topic_id is not None else await _by_name(ctx, wanted.name, create)
        )
    return described


async def _by_id(ctx: RequestContext, topic_id: UUID) -> dict[str, Any]:
    topic = ctx.services.state.topic_by_id(topic_id)
    if topic is None:
        return {
            "error_code": ErrorCode.unknown_topic_id,
            "name": None,
            "topic_id": topic_id,
            "partitions": (),
        }
    return describe_topic(ctx.services.state, topic)


async def _by_name(ctx: RequestContext, name: str | None, create: bool) -> dict[str, Any]:
    services = ctx.services
    topic = services.state.topics.get(name or "")
    if topic is None:
        try:
            check_topic_name(name or "", services.limits.topic_name_length_max)
            if not create:
                raise RequestError(ErrorCode.unknown_topic_or_partition)
            topic = await ensure_topic(services, name or "")
        except Exception as error:
            code, _ = error_of(error, ErrorCode.leader_not_available)
            return {"error_code": code, "name": name, "partitions": ()}
    return describe_topic(services.state, topic)


def describe_topic(state: ClusterState, topic: Topic) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [describe_partition(state, partition) for partition in topic.partitions],
    }


def describe_partition(state: ClusterState, partition: Partition) -> dict[str, Any]:
    leaderless = partition.leader == NO_LEADER
    return {
        "error_code": ErrorCode.leader_not_available if leaderless else ErrorCode.none,
        "partition_index": partition.partition,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [id for id in partition.replicas if not state.is_alive(id)],
    }
