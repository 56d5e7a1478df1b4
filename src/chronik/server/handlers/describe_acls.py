"""DescribeAcls: the ACLs that a filter matches, by resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.model import ErrorCode
from chronik.security.acl_fields import acl_fields
from chronik.security.acls import Operation
from chronik.server.acl_requests import checked_filter, require_authorizer
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest


@handles(ApiKey.DESCRIBE_ACLS, versions=(1, 3), needs=on_cluster(Operation.DESCRIBE))
async def describe_acls(request: DescribeAclsRequest, ctx: RequestContext) -> Reply:
    require_authorizer(ctx.access)
    wanted = checked_filter(request)
    resources: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for binding in sorted(ctx.services.state.security.acls):
        if wanted.matches(binding):
            key = (binding.resource_type, binding.resource_name, binding.pattern_type)
            resources.setdefault(key, []).append(acl_fields(binding))
    return reply(
        error_code=ErrorCode.none,
        error_message=None,
        resources=[
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in resources.items()
        ],
    )
