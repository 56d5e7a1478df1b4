"""DescribeCluster: brokers, controller, cluster id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronik.model import ErrorCode, RequestError
from chronik.server.authorized import cluster_operations
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import NOTHING
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2), needs=NOTHING)
async def describe_cluster(request: DescribeClusterRequest, ctx: RequestContext) -> Reply:
    endpoint_type = request.endpoint_type
    if endpoint_type == _CONTROLLERS:
        raise RequestError(
            ErrorCode.mismatched_endpoint_type, "This is a broker; controllers have no endpoint of their own."
        )
    if endpoint_type != _BROKERS:
        raise RequestError(ErrorCode.unsupported_endpoint_type, f"Unknown endpoint type {endpoint_type}.")
    state = ctx.services.state
    with_fenced = request.include_fenced_brokers
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
            if (kafka := broker.endpoints.get(ctx.connection.endpoint)) is not None
            and (with_fenced or not broker.fenced)
        ],
        cluster_authorized_operations=cluster_operations(
            ctx.access, request.include_cluster_authorized_operations
        ),
    )
