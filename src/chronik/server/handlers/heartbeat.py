"""Heartbeat: a member of a classic group is alive, and learns whether it must join again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_group
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest


@handles(
    ApiKey.HEARTBEAT,
    versions=(0, 4),
    needs=on_group(Operation.READ),
    unavailable=ErrorCode.coordinator_not_available,
)
async def heartbeat(request: HeartbeatRequest, ctx: RequestContext) -> Reply:
    await ctx.services.groups.heartbeat(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
    )
    return reply(error_code=ErrorCode.none)
