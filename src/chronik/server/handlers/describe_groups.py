"""DescribeGroups: state and members of classic groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.groups.classic_group import ClassicGroup, State
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation, ResourceType
from chronik.server.authorized import group_operations
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import each
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest


def _on_error(request: DescribeGroupsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(groups=[_failed(group_id, code, message) for group_id in request.groups])


def _failed(group_id: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }


@handles(
    ApiKey.DESCRIBE_GROUPS,
    versions=(0, 6),
    needs=each("groups", None, Operation.DESCRIBE, ResourceType.GROUP),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def describe_groups(request: DescribeGroupsRequest, ctx: RequestContext) -> Reply:
    with_operations = request.include_authorized_operations
    groups = []
    for group_id in request.groups:
        described = await _describe(group_id, ctx)
        described["authorized_operations"] = group_operations(ctx.access, group_id, with_operations)
        groups.append(described)
    return reply(groups=groups)


async def _describe(group_id: str, ctx: RequestContext) -> dict[str, Any]:
    try:
        group = await ctx.services.groups.describe(group_id)
        if not isinstance(group, ClassicGroup):
            raise RequestError(ErrorCode.group_id_not_found, f"Group {group_id} is not a classic group.")
    except RequestError as error:
        if error.code is not ErrorCode.group_id_not_found:
            return _failed(group_id, error.code, error.message)
        # Before version 6 an unknown group is described as dead.
        code = error.code if ctx.api_version >= 6 else ErrorCode.none
        return {**_failed(group_id, code, error.message), "group_state": State.DEAD.value}
    is_stable = group.state is State.STABLE
    return {
        "error_code": ErrorCode.none,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                "member_assignment": member.assignment if is_stable else b"",
            }
            for member in group.members.values()
        ],
    }
