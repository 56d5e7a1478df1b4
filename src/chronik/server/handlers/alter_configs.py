"""AlterConfigs: replaces all configs of a resource at once. Old clients and tools still use it."""

from __future__ import annotations

from typing import Any

from chronik.metadata.commands import SetConfigs
from chronik.model import ErrorCode, RequestError
from chronik.server.config_changes import alter_resources, on_error, set_configs
from chronik.server.dispatch import Reply, RequestContext, handles
from chronik.server.services import Services
from chronik.wire.api import ApiKey


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2), on_error=on_error)
async def alter_configs(request: Any, ctx: RequestContext) -> Reply:
    return await alter_resources(request, ctx, _plan)


def _plan(services: Services, resource: Any) -> SetConfigs:
    values: dict[str, str | None] = {}
    for config in resource.configs:
        if config.value is None:
            raise RequestError(ErrorCode.invalid_request, f"Null value not supported for: {config.name}")
        values[config.name] = config.value
    return set_configs(services, resource.resource_type, resource.resource_name, values, replace=True)
