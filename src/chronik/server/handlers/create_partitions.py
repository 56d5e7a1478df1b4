"""CreatePartitions: more partitions for topics that exist."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from chronik.metadata.commands import AddPartitions
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import each_topic
from chronik.server.services import Services
from chronik.server.throttling import charge_mutation
from chronik.server.topics import check_partition_count, plan_partitions
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic

FIRST_REFUSED_OVER_QUOTA: Final = 3
"""Clients of this version on know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _on_error(request: CreatePartitionsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(results=[_result(topic.name, code, message) for topic in request.topics])


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), needs=each_topic(Operation.ALTER), on_error=_on_error)
async def create_partitions(request: CreatePartitionsRequest, ctx: RequestContext) -> Reply:
    services = ctx.services
    results: dict[str, dict[str, Any]] = {}
    planned: list[tuple[str, AddPartitions]] = []
    check_partition_count(services, sum(_added(services, topic) for topic in request.topics))
    repeated = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
    for topic in request.topics:
        try:
            if topic.name in repeated:
                raise RequestError(ErrorCode.invalid_request, "Duplicate topic name.")
            command = _plan(services, topic)
            strict = ctx.api_version >= FIRST_REFUSED_OVER_QUOTA
            charge_mutation(ctx, _added(services, topic), strict=strict)
            planned.append((topic.name, command))
        except RequestError as error:
            results[topic.name] = _result(topic.name, error.code, error.message)
        else:
            results[topic.name] = _result(topic.name, ErrorCode.none, None)
    if not request.validate_only:
        timeout_s = max(0.0, request.timeout.total_seconds())
        for name, refused in await services.metadata.submit_each(planned, timeout_s=timeout_s):
            results[name] = _result(name, refused.code, refused.message)
    return reply(results=list(results.values()))


def _added(services: Services, wanted: CreatePartitionsTopic) -> int:
    topic = services.state.topics.get(wanted.name)
    return 0 if topic is None else max(wanted.count - len(topic.partitions), 0)


def _plan(services: Services, wanted: CreatePartitionsTopic) -> AddPartitions:
    topic = services.state.topics.get(wanted.name)
    if topic is None:
        raise RequestError(
            ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
        )
    assignments = None if wanted.assignments is None else [one.broker_ids for one in wanted.assignments]
    return plan_partitions(services, topic, wanted.count, assignments)


def _result(name: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "error_code": code, "error_message": message}
