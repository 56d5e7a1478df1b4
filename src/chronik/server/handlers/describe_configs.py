"""DescribeConfigs: values, their sources and synonyms, for topics and brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chronik.metadata.commands import BROKER_RESOURCE, TOPIC_RESOURCE
from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.model import ErrorCode, RequestError
from chronik.server.config_entries import Entry, broker_entries, default_broker_entries, topic_entries
from chronik.server.dispatch import Reply, RequestContext, error_of, handles, reply
from chronik.server.topics import check_topic_name
from chronik.wire.api import ApiKey


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return reply(results=[_result(resource, code, message, ()) for resource in request.resources])


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(1, 4), on_error=_on_error)
async def describe_configs(request: Any, ctx: RequestContext) -> Reply:
    results = []
    for resource in request.resources:
        try:
            entries = _entries(ctx, resource)
        except RequestError as error:
            results.append(_result(resource, *error_of(error, ErrorCode.none), ()))
            continue
        wanted = resource.configuration_keys
        shown = [
            {
                **entry,
                "synonyms": entry["synonyms"] if request.include_synonyms else (),
                "documentation": (
                    entry["documentation"] if getattr(request, "include_documentation", False) else None
                ),
            }
            for entry in entries
            if not wanted or entry["name"] in wanted
        ]
        results.append(_result(resource, ErrorCode.none, None, shown))
    return reply(results=results)


def _entries(ctx: RequestContext, resource: Any) -> Iterable[Entry]:
    services, name = ctx.services, resource.resource_name
    if resource.resource_type == TOPIC_RESOURCE:
        check_topic_name(name, services.limits.topic_name_length_max)
        topic = services.state.topics.get(name)
        if topic is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition)
        return topic_entries(services, topic.configs, TOPIC_CONFIGS)
    if resource.resource_type == BROKER_RESOURCE:
        if not name:
            return default_broker_entries(services.state.configs(BROKER_RESOURCE, ""))
        if name != str(services.settings.node_id):
            expected = services.settings.node_id
            raise RequestError(
                ErrorCode.invalid_request,
                f"Unexpected broker id, expected {expected} or empty string, but received {name}",
            )
        return broker_entries(services, _facts(ctx))
    raise RequestError(ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}")


def _facts(ctx: RequestContext) -> dict[str, str]:
    settings = ctx.services.settings
    facts = {
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "broker.id": str(settings.node_id),
        "default.replication.factor": str(settings.default_replication_factor),
        "group.consumer.migration.policy": "disabled",
        "listeners": f"PLAINTEXT://{ctx.connection.listener_host}:{ctx.connection.listener_port}",
        "log.dirs": str(settings.data_dir.absolute()),
        "max.connections": str(settings.connections_max),
        "node.id": str(settings.node_id),
        "num.partitions": str(settings.default_partitions),
        "offsets.topic.num.partitions": str(settings.offsets_topic_partitions),
        "socket.request.max.bytes": str(settings.frame_bytes_max),
        "transaction.state.log.num.partitions": str(settings.transactions_topic_partitions),
    }
    if settings.rack is not None:
        facts["broker.rack"] = settings.rack
    broker = ctx.services.state.brokers.get(settings.node_id)
    if broker is not None and "kafka" in broker.endpoints:
        kafka = broker.endpoints["kafka"]
        facts["advertised.listeners"] = f"PLAINTEXT://{kafka.host}:{kafka.port}"
    if broker is not None and "http" in broker.endpoints:
        http = broker.endpoints["http"]
        facts["chronik.http.address"] = f"{settings.http_scheme}://{http.host}:{http.port}"
    return facts


def _result(resource: Any, code: ErrorCode, message: str | None, configs: Iterable[Entry]) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": configs,
    }
