"""JoinGroup: become, or remain, a member of a classic group. Waits until everybody has joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.groups.classic_messages import Join
from chronik.model import ErrorCode
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_group
from chronik.wire.api import ApiKey
from chronik.wire.schema import in_ms

if TYPE_CHECKING:
    from kio.schema.join_group.v9.request import JoinGroupRequest


def _on_error(request: JoinGroupRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(
        error_code=code, generation_id=-1, protocol_name=None, leader="", member_id=request.member_id
    )


@handles(
    ApiKey.JOIN_GROUP,
    versions=(0, 9),
    needs=on_group(Operation.READ),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
    deadline_s=None,
)
async def join_group(request: JoinGroupRequest, ctx: RequestContext) -> Reply:
    groups = ctx.services.groups
    instance_id = request.group_instance_id
    session_timeout_ms = in_ms(request.session_timeout)
    join = Join(
        member_id=request.member_id,
        instance_id=instance_id,
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.connection.peer_host}",
        session_timeout_ms=session_timeout_ms,
        # Version 0 has no rebalance time-out: the session time-out is used.
        rebalance_timeout_ms=in_ms(request.rebalance_timeout) if ctx.api_version >= 1 else session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        new_member_id=groups.new_member_id(instance_id or ctx.client_id or ""),
        requires_known_member_id=ctx.api_version >= 4,
        supports_skipping_assignment=ctx.api_version >= 9,
    )
    result = await groups.join(request.group_id, join)
    return reply(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in result.members
        ],
    )
