"""LeaveGroup: members go, by themselves or because an operator removes them."""

from __future__ import annotations

from typing import Any

from chronik.groups.messages import Leave
from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5), unavailable=ErrorCode.coordinator_not_available)
async def leave_group(request: Any, ctx: RequestContext) -> Reply:
    if ctx.api_version < 3:
        leaves = [Leave(member_id=request.member_id, instance_id=None)]
    else:
        leaves = [
            Leave(member_id=one.member_id, instance_id=one.group_instance_id) for one in request.members
        ]
    codes = await ctx.services.groups.leave(request.group_id, leaves)
    if ctx.api_version < 3:
        return reply(error_code=codes[0])
    return reply(
        error_code=ErrorCode.none,
        members=[
            {"member_id": leave.member_id, "group_instance_id": leave.instance_id, "error_code": code}
            for leave, code in zip(leaves, codes, strict=True)
        ],
    )
