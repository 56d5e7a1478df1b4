"""DeleteTopics: by name, and by id from version 6 on."""

from __future__ import annotations

from collections import Counter
from typing import Any

from chronik.metadata.commands import Batch, DeleteTopic
from chronik.metadata.values import Topic
from chronik.model import ErrorCode, RequestError
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.services import Services
from chronik.wire.api import ApiKey


def _wanted(request: Any) -> list[tuple[str | None, Any]]:
    """(name, id) pairs, in the one form that old and new versions share."""
    if hasattr(request, "topic_names"):
        return [(name, None) for name in request.topic_names]
    return [(topic.name, topic.topic_id) for topic in request.topics]


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return reply(responses=[_result(name, topic_id, code, message) for name, topic_id in _wanted(request)])


@handles(ApiKey.DELETE_TOPICS, versions=(1, 6), on_error=_on_error)
async def delete_topics(request: Any, ctx: RequestContext) -> Reply:
    services = ctx.services
    wanted = _wanted(request)
    repeated = {key for key, count in Counter(wanted).items() if count > 1}
    found: list[Topic] = []
    results = []
    for name, topic_id in dict.fromkeys(wanted):
        try:
            if (name, topic_id) in repeated:
                raise RequestError(ErrorCode.invalid_request, "Duplicate topic name or id.")
            topic = _find(services, name, topic_id)
        except RequestError as error:
            results.append(_result(name, topic_id, error.code, error.message))
            continue
        found.append(topic)
    if found:
        commands = tuple(DeleteTopic(topic_id=topic.topic_id) for topic in found)
        timeout_s = max(0.0, request.timeout.total_seconds())
        outcome = await services.metadata.submit(Batch(commands=commands), timeout_s=timeout_s)
        for topic, part in zip(found, outcome.parts, strict=True):
            code, message = (
                (part.refused.code, part.refused.message) if part.refused else (ErrorCode.none, None)
            )
            results.append(_result(topic.name, topic.topic_id, code, message))
    return reply(responses=results)


def _find(services: Services, name: str | None, topic_id: Any) -> Topic:
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


def _result(name: str | None, topic_id: Any, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
