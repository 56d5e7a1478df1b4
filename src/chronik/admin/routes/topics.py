"""Topics: listing, looking closer, creating, deleting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.needs import on_topic
from chronik.admin.visible import allowed_on, visible_topics
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.metadata.durability import DurabilityPromise
from chronik.metadata.values import Topic
from chronik.model import (
    ChronikError,
    ErrorCode,
    Int32,
    Int64,
    NodeId,
    RequestError,
    TopicPartition,
    is_internal_topic,
)
from chronik.security.acls import Operation, ResourceType
from chronik.server.access import may_create
from chronik.server.gate import asks
from chronik.server.topics import plan_deletion, plan_topic

REMOTE_OFFSETS_SECONDS = 2.0
NAME_SHOWN_MAX = 249
"""Longest part of a name that an error repeats: as long as a topic's name can be."""


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    leader: NodeId
    leader_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    is_under_replicated: bool
    log_start_offset: int | None
    high_watermark: int | None
    log_end_offset: int | None
    size_bytes: int | None
    """Size of the replica on this node; null where there is none."""
    remote_bytes: int = 0
    """What of it is in the object store."""


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    is_internal: bool
    replication_factor: int
    partition_count: int
    message_count: int | None
    """Number of offsets. More than the records after compaction or transactions. Null if a leader is away."""
    size_bytes: int | None
    is_searchable: bool
    durability: str
    """What an acknowledged write may rely on, in one sentence."""
    configs: dict[str, str]
    partitions: tuple[PartitionView, ...]
    allowed: tuple[str, ...] | None = None
    """What the caller may do with the topic; null in the list of all topics."""


class TopicsQuery(msgspec.Struct, frozen=True):
    internal: bool = False
    """Also list the cluster's own topics."""


class NewTopicBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    partitions: Int32 = -1
    """-1: the cluster's default."""
    replication_factor: Int32 = -1
    config: dict[str, str | Int64 | float | bool] = {}


class TopicCreatedBody(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: int
    replication_factor: int


class TopicDeletedBody(msgspec.Struct, frozen=True):
    name: str
    topic_id: str


@endpoint(
    "GET",
    "/admin/topics",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    summary="All topics",
    query=TopicsQuery,
    answer=list[TopicView],
)
async def topics(call: HttpCall) -> list[TopicView]:
    """Partitions with leader, replicas, ISR and offsets; the same on every node."""
    context = call.context
    wanted = [
        context.state.topics[name]
        for name in visible_topics(call)
        if call.query.internal or not _is_internal(name)
    ]
    offsets = await _remote_offsets(context, wanted)
    return [view(context, topic, offsets) for topic in wanted]


@endpoint(
    "GET", "/admin/topics/{name}", needs=on_topic(Operation.DESCRIBE), summary="One topic", answer=TopicView
)
async def topic_details(call: HttpCall) -> TopicView:
    topic = known_topic(call.context, call.path["name"])
    found = view(call.context, topic, await _remote_offsets(call.context, [topic]))
    return msgspec.structs.replace(found, allowed=allowed_on(call, ResourceType.TOPIC, topic.name))


@endpoint(
    "POST",
    "/admin/create-topic",
    needs=asks((Operation.CREATE, ResourceType.TOPIC)),
    summary="Create a topic",
    body=NewTopicBody,
    answer=TopicCreatedBody,
    access=HttpAccess.CHANGE,
    about=lambda body: [body.name],
)
async def create_topic(call: HttpCall) -> TopicCreatedBody:
    """Answers when the topic is there on this node. Works on any node."""
    wanted: NewTopicBody = call.body
    if not may_create(call.access, wanted.name):
        raise RequestError(ErrorCode.topic_authorization_failed)
    command = plan_topic(
        call.context.services,
        wanted.name,
        partitions=wanted.partitions,
        replication_factor=wanted.replication_factor,
        configs={key: config_text(value) for key, value in wanted.config.items()},
    )
    call.context.quotas.charge_mutation(call.caller.principal, len(command.assignments))
    await call.context.services.metadata.submit(command)
    return TopicCreatedBody(
        name=command.name,
        topic_id=str(command.topic_id),
        partitions=len(command.assignments),
        replication_factor=len(command.assignments[0]),
    )


@endpoint(
    "DELETE",
    "/admin/topics/{name}",
    needs=on_topic(Operation.DELETE),
    summary="Delete a topic and all its records",
    answer=TopicDeletedBody,
    access=HttpAccess.CHANGE,
)
async def delete_topic(call: HttpCall) -> TopicDeletedBody:
    topic = known_topic(call.context, call.path["name"])
    command = plan_deletion(topic)
    call.context.quotas.charge_mutation(call.caller.principal, len(topic.partitions))
    await call.context.services.metadata.submit(command)
    return TopicDeletedBody(topic.name, str(topic.topic_id))


def _is_internal(name: str) -> bool:
    return name.startswith("__") or is_internal_topic(name)


def config_text(value: str | float) -> str:
    """A config's value as Kafka writes it, from any JSON type."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def known_topic(context: AdminContext, name: str) -> Topic:
    topic = context.state.topics.get(name)
    if topic is None:
        raise RequestError(
            ErrorCode.unknown_topic_or_partition, f"There is no topic {name[:NAME_SHOWN_MAX]!r}."
        )
    return topic


def view(context: AdminContext, topic: Topic, remote: Mapping[TopicPartition, tuple[int, int]]) -> TopicView:
    partitions = tuple(_partition_view(context, topic.name, one, remote) for one in topic.partitions)
    spans = [
        None
        if one.high_watermark is None or one.log_start_offset is None
        else one.high_watermark - one.log_start_offset
        for one in partitions
    ]
    config = context.services.topic_config(topic.name)
    return TopicView(
        name=topic.name,
        topic_id=str(topic.topic_id),
        is_internal=_is_internal(topic.name),
        replication_factor=len(topic.partitions[0].replicas),
        partition_count=len(topic.partitions),
        message_count=_sum(spans),
        size_bytes=_sum([one.size_bytes for one in partitions]),
        is_searchable=config.searchable,
        durability=DurabilityPromise.of_topic(topic.name, config.durability).promise,
        configs=topic.configs,
        partitions=partitions,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _partition_view(
    context: AdminContext, topic: str, one: Any, remote: Mapping[TopicPartition, tuple[int, int]]
) -> PartitionView:
    tp = TopicPartition(topic, one.partition)
    here = context.services.replicas.get(tp)
    start, end = remote.get(tp, (None, None))
    return PartitionView(
        partition=one.partition,
        leader=one.leader if context.state.is_alive(one.leader) else -1,
        leader_epoch=one.leader_epoch,
        replicas=one.replicas,
        isr=one.isr,
        is_under_replicated=len(one.isr) < len(one.replicas),
        log_start_offset=here.log_start_offset if here is not None else start,
        high_watermark=here.high_watermark if here is not None else end,
        log_end_offset=here.log_end_offset if here is not None else end,
        size_bytes=here.size_bytes if here is not None else None,
        remote_bytes=0 if one.remote is None else one.remote.size_bytes,
    )


async def _remote_offsets(
    context: AdminContext, topics: Iterable[Topic]
) -> Mapping[TopicPartition, tuple[int, int]]:
    """Start and end offsets of partitions without a replica here. Partitions whose node does not answer are
    left out."""
    missing = [
        tp
        for topic in topics
        for one in topic.partitions
        if context.services.replicas.get(tp := TopicPartition(topic.name, one.partition)) is None
        and context.state.is_alive(one.leader)
    ]
    if not missing:
        return {}
    cluster = context.loopback.cluster()
    try:
        async with asyncio.timeout(REMOTE_OFFSETS_SECONDS):
            starts, ends = await asyncio.gather(
                list_offsets(cluster, dict.fromkeys(missing, EARLIEST)),
                list_offsets(cluster, dict.fromkeys(missing, LATEST)),
            )
    except (ChronikError, TimeoutError):
        return {}
    return {tp: (starts[tp].offset, ends[tp].offset) for tp in missing if tp in starts and tp in ends}
