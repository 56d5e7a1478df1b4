"""Heartbeat: a member of a classic group is alive, and learns whether it must join again."""

from __future__ import annotations

from typing import Any

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey


@handles(ApiKey.HEARTBEAT, versions=(0, 4), unavailable=ErrorCode.coordinator_not_available)
async def heartbeat(request: Any, ctx: RequestContext) -> Reply:
    await ctx.services.groups.heartbeat(
        request.group_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
        request.generation_id,
    )
    return reply(error_code=ErrorCode.none)
