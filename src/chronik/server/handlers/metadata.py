"""Metadata: brokers, topics and partition leaders. Auto-creates topics where that is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chronik.metadata.values import Broker, Topic
from chronik.model import ErrorCode, RequestError, is_internal_topic
from chronik.security.acls import Operation, ResourceType
from chronik.server.access import may_create
from chronik.server.authorized import NOT_REQUESTED, cluster_operations
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import asks
from chronik.server.throttling import may_create_on_first_use
from chronik.server.topics import check_first_use, check_topic_name, ensure_topic
from chronik.wire.api import ApiKey
from chronik.wire.writing import Encoded

if TYPE_CHECKING:
    from kio.schema.metadata.v10.request import MetadataRequest


def _on_error(request: MetadataRequest, code: ErrorCode, message: str | None) -> Reply:
    topics = [
        {"error_code": code, "name": topic.name, "topic_id": topic.topic_id} for topic in request.topics or ()
    ]
    return reply(error_code=code, topics=topics)


@handles(
    ApiKey.METADATA,
    versions=(0, 13),
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC), (Operation.CREATE, ResourceType.TOPIC)),
    decoded_as=(10,),
    on_error=_on_error,
    in_turn=True,
)
async def metadata(request: MetadataRequest, ctx: RequestContext) -> Reply:
    services = ctx.services
    await _settle(request, ctx)
    return reply(
        brokers=brokers_of(services.presence.brokers(), ctx.connection.endpoint),
        cluster_id=services.state.cluster_id,
        controller_id=services.controller_id(),
        topics=await _topics(request, ctx),
        cluster_authorized_operations=cluster_operations(
            ctx.access, request.include_cluster_authorized_operations
        ),
    )


async def _settle(request: MetadataRequest, ctx: RequestContext) -> None:
    """If a requested partition's leader seems to have died, wait until it is fenced or back."""
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
            if wanted.topic_id is None
            else state.topic_by_id(wanted.topic_id)
            for wanted in request.topics
        )
    await presence.settled(
        doubted.intersection(one.leader for topic in topics if topic is not None for one in topic.partitions)
    )


def _may_see(ctx: RequestContext, topic: str) -> bool:
    return ctx.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def brokers_of(brokers: Iterable[Broker], endpoint: str) -> list[dict[str, Any]]:
    """Brokers at the address of the listener that the client came by."""
    return [
        {"node_id": broker.broker_id, "host": kafka.host, "port": kafka.port, "rack": broker.rack}
        for broker in brokers
        if (kafka := broker.endpoints.get(endpoint)) is not None
    ]


async def _topics(request: MetadataRequest, ctx: RequestContext) -> Sequence[Mapping[str, Any] | Encoded]:
    state = ctx.services.state
    # Version 0 had no null: there an empty list means all topics.
    if request.topics is None or (ctx.api_version == 0 and not request.topics):
        return _encoded(ctx, request, [one for one in state.topics.values() if _may_see(ctx, one.name)])
    create = ctx.services.settings.auto_create_topics and request.allow_auto_topic_creation
    too_many = _too_many(request, ctx) if create else None
    found: list[Topic | Mapping[str, Any]] = []
    seen = set()
    for wanted in request.topics:
        topic_id: UUID | None = wanted.topic_id
        if topic_id is not None and ctx.api_version < 12:
            raise RequestError(ErrorCode.invalid_request, "Topic ids are understood from version 12 on.")
        key = topic_id or wanted.name
        if key in seen:
            continue
        seen.add(key)
        found.append(
            _by_id(ctx, topic_id)
            if topic_id is not None
            else await _by_name(ctx, wanted.name, create, too_many)
        )
    encoded = iter(_encoded(ctx, request, [one for one in found if isinstance(one, Topic)]))
    return [next(encoded) if isinstance(one, Topic) else one for one in found]


def _encoded(ctx: RequestContext, request: MetadataRequest, topics: Iterable[Topic]) -> list[Encoded]:
    with_operations, access, services = request.include_topic_authorized_operations, ctx.access, ctx.services
    wanted = (
        (topic, access.operations(ResourceType.TOPIC, topic.name) if with_operations else NOT_REQUESTED)
        for topic in topics
    )
    return services.topic_answers.encoded(services.state, ctx.api_version, wanted)


def _too_many(request: MetadataRequest, ctx: RequestContext) -> RequestError | None:
    """Why none of the topics is created that the request mentions: together they are too many."""
    topics = ctx.services.state.topics
    named = {wanted.name for wanted in request.topics or () if wanted.topic_id is None and wanted.name}
    try:
        check_first_use(
            ctx.services, [name for name in named if name not in topics and not is_internal_topic(name)]
        )
    except RequestError as error:
        return error
    return None


def _by_id(ctx: RequestContext, topic_id: UUID) -> Topic | Mapping[str, Any]:
    topic = ctx.services.state.topic_by_id(topic_id)
    if topic is None:
        return _failed(ErrorCode.unknown_topic_id, None, topic_id)
    if not ctx.access.permits(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
        return _failed(ErrorCode.topic_authorization_failed, None, topic_id)
    return topic


async def _by_name(
    ctx: RequestContext, name: str | None, create: bool, too_many: RequestError | None
) -> Topic | Mapping[str, Any]:
    services = ctx.services
    if not ctx.access.permits(Operation.DESCRIBE, ResourceType.TOPIC, name or ""):
        # Refused before the topic is looked up, so that the answer cannot reveal whether it exists.
        return _failed(ErrorCode.topic_authorization_failed, name)
    topic = services.state.topics.get(name or "")
    if topic is None:
        try:
            check_topic_name(name or "", services.limits.topic_name_length_max)
            if not create or is_internal_topic(name or ""):
                raise RequestError(ErrorCode.unknown_topic_or_partition)
            if not may_create(ctx.access, name or ""):
                raise RequestError(ErrorCode.topic_authorization_failed)
            if too_many is not None:
                raise too_many
            if not may_create_on_first_use(ctx):
                raise RequestError(ErrorCode.leader_not_available)
            topic = await ensure_topic(services, name or "")
        except Exception as error:
            code, _ = error_of(error, ErrorCode.leader_not_available)
            return _failed(code, name)
    return topic


def _failed(code: ErrorCode, name: str | None, topic_id: UUID | None = None) -> Mapping[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "partitions": (),
        "topic_authorized_operations": NOT_REQUESTED,
    }
