"""CreateTopics: all topics of a request in one metadata entry, each accepted or refused by itself."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from chronik.metadata.commands import CreateTopic
from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.model import ErrorCode, NodeId, RequestError
from chronik.security.acls import Operation, ResourceType
from chronik.server.config_entries import layered_entries
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import each
from chronik.server.services import Services
from chronik.server.throttling import charge_mutation
from chronik.server.topics import check_partition_count, plan_topic
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest

FIRST_REFUSED_OVER_QUOTA: Final = 6
"""Clients of this version on know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _on_error(request: CreateTopicsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(topics=[_failed(topic.name, code, message) for topic in request.topics])


@handles(
    ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    needs=each("topics", "name", Operation.CREATE, ResourceType.TOPIC, unless_on_cluster=Operation.CREATE),
    on_error=_on_error,
)
async def create_topics(request: CreateTopicsRequest, ctx: RequestContext) -> Reply:
    services = ctx.services
    results: dict[str, dict[str, Any]] = {}
    planned: list[tuple[str, CreateTopic]] = []
    check_partition_count(services, sum(_partition_count(services, topic) for topic in request.topics))
    repeated = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
    for topic in request.topics:
        if topic.name in repeated:
            results[topic.name] = _failed(topic.name, ErrorCode.invalid_request, "Duplicate topic name.")
            continue
        try:
            command = _plan(services, topic)
            strict = ctx.api_version >= FIRST_REFUSED_OVER_QUOTA
            charge_mutation(ctx, len(command.assignments), strict=strict)
        except RequestError as error:
            results[topic.name] = _failed(topic.name, error.code, error.message)
            continue
        planned.append((topic.name, command))
        results[topic.name] = _created(services, command)
    if not request.validate_only:
        timeout_s = max(0.0, request.timeout.total_seconds())
        for name, refused in await services.metadata.submit_each(planned, timeout_s=timeout_s):
            results[name] = _failed(name, refused.code, refused.message)
    return reply(topics=list(results.values()))


def _partition_count(services: Services, topic: CreatableTopic) -> int:
    if topic.num_partitions >= 0:
        return topic.num_partitions
    return len(topic.assignments) or services.settings.default_partitions


def _plan(services: Services, topic: CreatableTopic) -> CreateTopic:
    assignments: dict[int, tuple[NodeId, ...]] = {
        assignment.partition_index: assignment.broker_ids for assignment in topic.assignments
    }
    if len(assignments) != len(topic.assignments):
        raise RequestError(ErrorCode.invalid_replica_assignment, "A partition is assigned twice.")
    configs = {config.name: config.value for config in topic.configs}
    if len(configs) != len(topic.configs):
        raise RequestError(ErrorCode.invalid_config, "A config is set twice.")
    return plan_topic(
        services,
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments,
        configs=configs,
    )


def _created(services: Services, command: CreateTopic) -> dict[str, Any]:
    return {
        "name": command.name,
        "topic_id": command.topic_id,
        "error_code": ErrorCode.none,
        "num_partitions": len(command.assignments),
        "replication_factor": len(command.assignments[0]),
        "configs": [
            {key: entry[key] for key in ("name", "value", "read_only", "config_source", "is_sensitive")}
            for entry in layered_entries(services, command.configs, TOPIC_CONFIGS)
        ],
    }


def _failed(name: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": code,
        "error_message": message,
        "num_partitions": -1,
        "replication_factor": -1,
    }
