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
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import each_config
from chronik.server.setting_values import values_of_settings
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
        return broker_entries(services, values_of_settings(services, ctx.connection))
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        return logger_entries(services, name)
    raise RequestError(ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}")


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
