"""SyncGroup: the leader hands in the assignment, everybody gets their part. Waits for the leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.groups.classic_messages import Sync
from chronik.model import ErrorCode
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_group
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequest


def _on_error(request: SyncGroupRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, assignment=b"")


@handles(
    ApiKey.SYNC_GROUP,
    versions=(0, 5),
    needs=on_group(Operation.READ),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
    deadline_s=None,
)
async def sync_group(request: SyncGroupRequest, ctx: RequestContext) -> Reply:
    sync = Sync(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
    )
    result = await ctx.services.groups.sync(request.group_id, sync)
    return reply(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
