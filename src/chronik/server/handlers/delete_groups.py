"""DeleteGroups: empty groups and their offsets are forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import each
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest


def _on_error(request: DeleteGroupsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(results=[{"group_id": group_id, "error_code": code} for group_id in request.groups_names])


@handles(
    ApiKey.DELETE_GROUPS,
    versions=(0, 2),
    needs=each("groups_names", None, Operation.DELETE, ResourceType.GROUP),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def delete_groups(request: DeleteGroupsRequest, ctx: RequestContext) -> Reply:
    results = []
    for group_id in request.groups_names:
        code = ErrorCode.none
        try:
            await ctx.services.groups.delete(group_id)
        except Exception as error:
            code, _ = error_of(error, ErrorCode.coordinator_not_available)
            if code is ErrorCode.unknown_server_error:
                raise
        results.append({"group_id": group_id, "error_code": code})
    return reply(results=results)
