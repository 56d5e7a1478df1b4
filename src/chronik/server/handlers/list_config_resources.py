"""ListConfigResources: what has configs. Version 0 is KIP-714's ListClientMetricsResources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronik.metadata.commands import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest

_ALL: Final = (
    TOPIC_RESOURCE,
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
)


@handles(
    ApiKey.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    needs=on_cluster(Operation.DESCRIBE_CONFIGS),
    unavailable=ErrorCode.coordinator_not_available,
)
async def list_config_resources(request: ListConfigResourcesRequest, ctx: RequestContext) -> Reply:
    wanted: tuple[int, ...] = tuple(request.resource_types) or _ALL
    if ctx.api_version == 0:
        wanted = (CLIENT_METRICS_RESOURCE,)
    if not set(wanted) <= set(_ALL):
        raise RequestError(ErrorCode.unsupported_version, "A resource type is not known.")
    return reply(
        error_code=ErrorCode.none,
        config_resources=[
            {"resource_name": name, "resource_type": kind}
            for kind in _ALL
            if kind in wanted
            for name in _names(kind, ctx)
        ],
    )


def _names(kind: int, ctx: RequestContext) -> list[str]:
    state = ctx.services.state
    if kind == TOPIC_RESOURCE:
        return sorted(state.topics)
    if kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return [str(broker) for broker in sorted(state.brokers)]
    return sorted(state.config_table(kind))
