"""IncrementalAlterConfigs: set, delete, append to, subtract from single configs (KIP-339)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from chronik.metadata.broker_config import BROKER_CONFIGS
from chronik.metadata.client_metrics import CLIENT_METRICS_CONFIGS
from chronik.metadata.commands import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    SetConfigs,
)
from chronik.metadata.config_def import ConfigDef, ConfigKind
from chronik.metadata.group_config import GROUP_CONFIGS
from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.server.broker_loggers import change_loggers
from chronik.server.config_changes import alter_resources, check_resource, refuse_resources, set_configs
from chronik.server.dispatch import Reply, RequestContext, handles
from chronik.server.gate import each_config
from chronik.server.services import Services
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

_DEFINITIONS: Final[Mapping[int, Mapping[str, ConfigDef]]] = {
    TOPIC_RESOURCE: TOPIC_CONFIGS,
    BROKER_RESOURCE: BROKER_CONFIGS,
    GROUP_RESOURCE: GROUP_CONFIGS,
    CLIENT_METRICS_RESOURCE: CLIENT_METRICS_CONFIGS,
}


class _Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def _on_error(request: IncrementalAlterConfigsRequest, code: ErrorCode, message: str | None) -> Reply:
    return refuse_resources(request, code, message)


@handles(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    needs=each_config(Operation.ALTER_CONFIGS),
    on_error=_on_error,
)
async def incremental_alter_configs(request: IncrementalAlterConfigsRequest, ctx: RequestContext) -> Reply:
    return await alter_resources(request, ctx, partial(_plan, validate_only=request.validate_only))


def _plan(ctx: RequestContext, resource: AlterConfigsResource, *, validate_only: bool) -> SetConfigs | None:
    services = ctx.services
    if resource.resource_type == BROKER_LOGGER_RESOURCE:
        change_loggers(services, resource, validate_only=validate_only)
        return None
    check_resource(services, resource.resource_type, resource.resource_name)
    values: dict[str, str | None] = {}
    for config in resource.configs:
        if config.name in values:
            raise RequestError(ErrorCode.invalid_request, f"Config {config.name} is changed twice.")
        values[config.name] = _new_value(services, resource, config)
    return set_configs(
        services, ctx.access, resource.resource_type, resource.resource_name, values, replace=False
    )


def _new_value(services: Services, resource: AlterConfigsResource, config: AlterableConfig) -> str | None:
    try:
        operation = _Operation(config.config_operation)
    except ValueError:
        raise RequestError(
            ErrorCode.invalid_request, f"Unknown config operation {config.config_operation}."
        ) from None
    if operation == _Operation.DELETE:
        return None
    value: str | None = config.value
    if value is None:
        raise RequestError(ErrorCode.invalid_request, f"Null value not supported for: {config.name}")
    if operation == _Operation.SET:
        return value
    definition = _DEFINITIONS[resource.resource_type].get(config.name)
    if definition is None or definition.kind != ConfigKind.LIST:
        raise RequestError(
            ErrorCode.invalid_config, f"Config value append is not allowed for config key: {config.name}"
        )
    configs = services.state.configs(resource.resource_type, resource.resource_name)
    items = [
        item.strip() for item in configs.get(config.name, definition.default or "").split(",") if item.strip()
    ]
    changes = [item.strip() for item in value.split(",")]
    if operation == _Operation.APPEND:
        return ",".join(dict.fromkeys([*items, *changes]))
    return ",".join(item for item in items if item not in changes)
