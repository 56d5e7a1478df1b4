"""JoinGroup: become, or remain, a member of a classic group. Waits until everybody has joined."""

from __future__ import annotations

from typing import Any

from chronik.groups.messages import Join
from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, generation_id=-1, protocol_name="", leader="", member_id=request.member_id)


@handles(
    ApiKey.JOIN_GROUP,
    versions=(0, 9),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
    deadline_s=None,
)
async def join_group(request: Any, ctx: RequestContext) -> Reply:
    groups = ctx.services.groups
    instance_id = getattr(request, "group_instance_id", None)
    session_timeout_ms = _ms(request.session_timeout)
    join = Join(
        member_id=request.member_id,
        instance_id=instance_id,
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.connection.peer_host}",
        session_timeout_ms=session_timeout_ms,
        # Version 0 has no time-out of its own for the rebalance.
        rebalance_timeout_ms=_ms(request.rebalance_timeout) if ctx.api_version >= 1 else session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        new_member_id=groups.new_member_id(instance_id or ctx.client_id or ""),
        requires_known_member_id=ctx.api_version >= 4,
        supports_skipping_assignment=ctx.api_version >= 9,
    )
    result = await groups.join(request.group_id, join)
    # Null is understood from version 7 on; before, no protocol is the empty string.
    protocol = result.protocol if result.protocol is not None or ctx.api_version >= 7 else ""
    return reply(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol,
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


def _ms(duration: Any) -> int:
    return int(duration.total_seconds() * 1000)
