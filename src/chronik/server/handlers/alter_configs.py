"""AlterConfigs: replaces all configs of a resource at once. Old clients and tools still use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.metadata.commands import SetConfigs
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.server.config_changes import alter_resources, check_resource, refuse_resources, set_configs
from chronik.server.dispatch import Reply, RequestContext, handles
from chronik.server.gate import each_config
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource


def _on_error(request: AlterConfigsRequest, code: ErrorCode, message: str | None) -> Reply:
    return refuse_resources(request, code, message)


@handles(
    ApiKey.ALTER_CONFIGS, versions=(0, 2), needs=each_config(Operation.ALTER_CONFIGS), on_error=_on_error
)
async def alter_configs(request: AlterConfigsRequest, ctx: RequestContext) -> Reply:
    return await alter_resources(request, ctx, _plan)


def _plan(ctx: RequestContext, resource: AlterConfigsResource) -> SetConfigs:
    check_resource(ctx.services, resource.resource_type, resource.resource_name)
    values: dict[str, str | None] = {}
    for config in resource.configs:
        if config.value is None:
            raise RequestError(ErrorCode.invalid_request, f"Null value not supported for: {config.name}")
        values[config.name] = config.value
    return set_configs(
        ctx.services, ctx.access, resource.resource_type, resource.resource_name, values, replace=True
    )
