"""ListGroups: the groups that this broker coordinates."""

from __future__ import annotations

from typing import Any

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey


@handles(ApiKey.LIST_GROUPS, versions=(0, 5), unavailable=ErrorCode.coordinator_not_available)
async def list_groups(request: Any, ctx: RequestContext) -> Reply:
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    kinds = {kind.lower() for kind in getattr(request, "types_filter", ())}
    return reply(
        error_code=ErrorCode.none,
        groups=[
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.kind,
            }
            for group in ctx.services.groups.list()
            if (not states or group.state.lower() in states) and (not kinds or group.kind.lower() in kinds)
        ],
    )
