"""SyncGroup: the leader hands in the assignment, everybody gets their part. Waits for the leader."""

from __future__ import annotations

from typing import Any

from chronik.groups.messages import Sync
from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, assignment=b"")


@handles(
    ApiKey.SYNC_GROUP,
    versions=(0, 5),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
    deadline_s=None,
)
async def sync_group(request: Any, ctx: RequestContext) -> Reply:
    sync = Sync(
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol_type=getattr(request, "protocol_type", None),
        protocol=getattr(request, "protocol_name", None),
        assignments=tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
    )
    result = await ctx.services.groups.sync(request.group_id, sync)
    return reply(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
