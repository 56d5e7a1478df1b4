"""ListGroups: the groups that this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import shown
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_groups.v5.request import ListGroupsRequest


@handles(
    ApiKey.LIST_GROUPS,
    versions=(0, 5),
    needs=shown(
        "groups", "group_id", Operation.DESCRIBE, ResourceType.GROUP, unless_on_cluster=Operation.DESCRIBE
    ),
    unavailable=ErrorCode.coordinator_not_available,
)
async def list_groups(request: ListGroupsRequest, ctx: RequestContext) -> Reply:
    states = {state.lower() for state in request.states_filter}
    kinds = {kind.lower() for kind in request.types_filter}
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
            if (not states or group.state.lower() in states) and (not kinds or group.kind in kinds)
        ],
    )
