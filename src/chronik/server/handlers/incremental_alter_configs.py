"""IncrementalAlterConfigs: set, delete, append to, subtract from single configs (KIP-339)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from chronik.metadata.broker_config import BROKER_CONFIGS
from chronik.metadata.commands import TOPIC_RESOURCE, SetConfigs
from chronik.metadata.config_def import ConfigKind
from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.model import ErrorCode, RequestError
from chronik.server.config_changes import alter_resources, on_error, set_configs
from chronik.server.dispatch import Reply, RequestContext, handles
from chronik.server.services import Services
from chronik.wire.api import ApiKey


class _Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), on_error=on_error)
async def incremental_alter_configs(request: Any, ctx: RequestContext) -> Reply:
    return await alter_resources(request, ctx, _plan)


def _plan(services: Services, resource: Any) -> SetConfigs:
    values: dict[str, str | None] = {}
    for config in resource.configs:
        if config.name in values:
            raise RequestError(ErrorCode.invalid_request, f"Config {config.name} is changed twice.")
        values[config.name] = _new_value(services, resource, config)
    return set_configs(services, resource.resource_type, resource.resource_name, values, replace=False)


def _new_value(services: Services, resource: Any, config: Any) -> str | None:
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
    definitions = TOPIC_CONFIGS if resource.resource_type == TOPIC_RESOURCE else BROKER_CONFIGS
    definition = definitions.get(config.name)
    if definition is None or definition.kind != ConfigKind.LIST:
        raise RequestError(
            ErrorCode.invalid_config, f"Config value append is not allowed for config key: {config.name}"
        )
    configs = services.state.configs(resource.resource_type, resource.resource_name)
    items = [item.strip() for item in configs.get(config.name, definition.default).split(",") if item.strip()]
    changes = [item.strip() for item in value.split(",")]
    if operation == _Operation.APPEND:
        return ",".join(dict.fromkeys([*items, *changes]))
    return ",".join(item for item in items if item not in changes)
