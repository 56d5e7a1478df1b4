"""DescribeCluster: brokers, controller, cluster id."""

from __future__ import annotations

from typing import Any, Final

from chronik.model import ErrorCode, RequestError
from chronik.server.authorized import CLUSTER_OPERATIONS, NOT_REQUESTED
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
async def describe_cluster(request: Any, ctx: RequestContext) -> Reply:
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type == _CONTROLLERS:
        raise RequestError(
            ErrorCode.mismatched_endpoint_type, "This is a broker; controllers have no endpoint of their own."
        )
    if endpoint_type != _BROKERS:
        raise RequestError(ErrorCode.unsupported_endpoint_type, f"Unknown endpoint type {endpoint_type}.")
    state = ctx.services.state
    with_fenced = getattr(request, "include_fenced_brokers", False)
    return reply(
        error_code=ErrorCode.none,
        endpoint_type=_BROKERS,
        cluster_id=state.cluster_id or "",
        controller_id=ctx.services.controller_id(),
        brokers=[
            {
                "broker_id": broker.broker_id,
                "host": kafka.host,
                "port": kafka.port,
                "rack": broker.rack,
                "is_fenced": broker.fenced,
            }
            for _, broker in sorted(state.brokers.items())
            if (kafka := broker.endpoints.get("kafka")) is not None and (with_fenced or not broker.fenced)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )
