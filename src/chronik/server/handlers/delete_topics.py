"""DeleteTopics: by name, and by id from version 6 on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from chronik.metadata.commands import Batch, DeleteTopic
from chronik.metadata.values import Topic
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import all_of, each_topic
from chronik.server.services import Services
from chronik.server.throttling import charge_mutation
from chronik.server.topics import plan_deletion
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest as DeleteTopicsRequestV5
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest as DeleteTopicsRequestV6

    Request: TypeAlias = DeleteTopicsRequestV5 | DeleteTopicsRequestV6

FIRST_REFUSED_OVER_QUOTA: Final = 5
"""Clients of this version on know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _wanted(request: Request) -> list[tuple[str | None, UUID | None]]:
    """(name, id) pairs, whichever version the request has."""
    if hasattr(request, "topic_names"):
        return [(name, None) for name in request.topic_names]
    return [(topic.name, topic.topic_id) for topic in request.topics]


def _on_error(request: Request, code: ErrorCode, message: str | None) -> Reply:
    return reply(responses=[_result(name, topic_id, code, message) for name, topic_id in _wanted(request)])


@handles(
    ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    needs=all_of(
        each_topic(Operation.DELETE, missing_is_told=True),
        each_topic(Operation.DELETE, "topic_names", missing_is_told=True),
    ),
    decoded_as=(5, 6),
    on_error=_on_error,
)
async def delete_topics(request: Request, ctx: RequestContext) -> Reply:
    services = ctx.services
    wanted = _wanted(request)
    repeated = {key for key, count in Counter(wanted).items() if count > 1}
    found: list[Topic] = []
    commands: list[DeleteTopic] = []
    results = []
    for name, topic_id in dict.fromkeys(wanted):
        try:
            if (name, topic_id) in repeated:
                raise RequestError(ErrorCode.invalid_request, "Duplicate topic name or id.")
            topic = _find(services, name, topic_id)
            command = plan_deletion(topic)
            strict = ctx.api_version >= FIRST_REFUSED_OVER_QUOTA
            charge_mutation(ctx, len(topic.partitions), strict=strict)
            commands.append(command)
        except RequestError as error:
            results.append(_result(name, topic_id, error.code, error.message))
            continue
        found.append(topic)
    if found:
        timeout_s = max(0.0, request.timeout.total_seconds())
        outcome = await services.metadata.submit(Batch(commands=tuple(commands)), timeout_s=timeout_s)
        for topic, part in zip(found, outcome.parts, strict=True):
            code, message = (
                (part.refused.code, part.refused.message) if part.refused else (ErrorCode.none, None)
            )
            results.append(_result(topic.name, topic.topic_id, code, message))
    return reply(responses=results)


def _find(services: Services, name: str | None, topic_id: UUID | None) -> Topic:
    if name is not None and topic_id is not None:
        raise RequestError(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if topic_id is not None:
        topic = services.state.topic_by_id(topic_id)
        if topic is None:
            raise RequestError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
        return topic
    if name is None:
        raise RequestError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    topic = services.state.topics.get(name)
    if topic is None:
        raise RequestError(
            ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
        )
    return topic


def _result(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
