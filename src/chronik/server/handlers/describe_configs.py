"""DescribeConfigs: values, sources and synonyms, for topics, brokers, loggers, groups and subscriptions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from chronik.metadata.client_metrics import CLIENT_METRICS_CONFIGS
from chronik.metadata.commands import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from chronik.metadata.group_config import GROUP_CONFIGS
from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.server.broker_loggers import logger_entries
from chronik.server.config_entries import (
    ConfigSource,
    Entry,
    broker_entries,
    default_broker_entries,
    layered_entries,
)
from chronik.server.coordinators import MIN_INSYNC_REPLICAS, REPLICATION_FACTOR
from chronik.server.dispatch import Reply, RequestContext, error_of, handles, reply
from chronik.server.gate import each_config
from chronik.server.internal_topics import CONFIGS
from chronik.server.topics import check_topic_name
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource


def _on_error(request: DescribeConfigsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(results=[_result(resource, code, message, ()) for resource in request.resources])


@handles(
    ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    needs=each_config(Operation.DESCRIBE_CONFIGS),
    on_error=_on_error,
)
async def describe_configs(request: DescribeConfigsRequest, ctx: RequestContext) -> Reply:
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
                "documentation": (entry["documentation"] if request.include_documentation else None),
            }
            for entry in entries
            if not wanted or entry["name"] in wanted
        ]
        results.append(_result(resource, ErrorCode.none, None, shown))
    return reply(results=results)


def _entries(ctx: RequestContext, resource: DescribeConfigsResource) -> Iterable[Entry]:
    services, name = ctx.services, resource.resource_name
    if resource.resource_type == TOPIC_RESOURCE:
        check_topic_name(name, services.limits.topic_name_length_max)
        topic = services.state.topics.get(name)
        if topic is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition)
        return layered_entries(services, topic.configs, TOPIC_CONFIGS)
    if resource.resource_type in (GROUP_RESOURCE, CLIENT_METRICS_RESOURCE):
        if not name:
            raise RequestError(ErrorCode.invalid_request, "The name of the resource must not be empty.")
        own = services.state.configs(resource.resource_type, name)
        if resource.resource_type == GROUP_RESOURCE:
            return layered_entries(services, own, GROUP_CONFIGS, ConfigSource.GROUP)
        return layered_entries(services, own, CLIENT_METRICS_CONFIGS, ConfigSource.CLIENT_METRICS)
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
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        return logger_entries(services, name)
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
        "max.connections": str(ctx.services.limits.connections_max),
        "max.connections.per.ip": str(ctx.services.limits.connections_per_ip_max),
        "node.id": str(settings.node_id),
        "num.partitions": str(settings.default_partitions),
        "offsets.topic.num.partitions": str(settings.offsets_topic_partitions),
        "offsets.topic.replication.factor": str(REPLICATION_FACTOR),
        "offsets.topic.segment.bytes": CONFIGS["segment.bytes"],
        "replica.lag.time.max.ms": str(settings.replica_lag_time_max_ms),
        "socket.request.max.bytes": str(settings.frame_bytes_max),
        "transaction.state.log.min.isr": str(MIN_INSYNC_REPLICAS),
        "transaction.state.log.num.partitions": str(settings.transactions_topic_partitions),
        "transaction.state.log.replication.factor": str(REPLICATION_FACTOR),
        "transaction.state.log.segment.bytes": CONFIGS["segment.bytes"],
    }
    if settings.rack is not None:
        facts["broker.rack"] = settings.rack
    broker = ctx.services.state.brokers.get(settings.node_id)
    kafka = None if broker is None else broker.endpoints.get(ctx.connection.endpoint)
    if kafka is not None:
        facts["advertised.listeners"] = f"PLAINTEXT://{kafka.host}:{kafka.port}"
    if broker is not None and "http" in broker.endpoints:
        http = broker.endpoints["http"]
        facts["chronik.http.address"] = f"{settings.http_scheme}://{http.host}:{http.port}"
    return facts


def _result(
    resource: DescribeConfigsResource, code: ErrorCode, message: str | None, configs: Iterable[Entry]
) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": configs,
    }
