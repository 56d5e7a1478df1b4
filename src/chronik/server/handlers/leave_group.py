"""LeaveGroup: members leave, or are removed by an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from chronik.groups.classic_messages import Leave
from chronik.model import ErrorCode
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_group
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.leave_group.v2.request import LeaveGroupRequest as LeaveGroupRequestV2
    from kio.schema.leave_group.v5.request import LeaveGroupRequest as LeaveGroupRequestV5

    Request: TypeAlias = LeaveGroupRequestV2 | LeaveGroupRequestV5


@handles(
    ApiKey.LEAVE_GROUP,
    versions=(0, 5),
    needs=on_group(Operation.READ),
    decoded_as=(2, 5),
    unavailable=ErrorCode.coordinator_not_available,
)
async def leave_group(request: Request, ctx: RequestContext) -> Reply:
    if hasattr(request, "member_id"):
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
