"""DeleteAcls: removes what the filters match, and tells what that was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronik.metadata.commands import RemoveAcls
from chronik.model import ErrorCode, RequestError
from chronik.security.acl_fields import acl_fields, resource_fields
from chronik.security.acls import AclBinding, Operation
from chronik.server.acl_requests import checked_filter, require_authorizer
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest

ACLS_AT_ONCE: Final = 1_000
"""In one entry of the metadata log."""


def _on_error(request: DeleteAclsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(filter_results=[_result(code, message, []) for _ in request.filters])


@handles(ApiKey.DELETE_ACLS, versions=(1, 3), needs=on_cluster(Operation.ALTER), on_error=_on_error)
async def delete_acls(request: DeleteAclsRequest, ctx: RequestContext) -> Reply:
    require_authorizer(ctx.access)
    held = sorted(ctx.services.state.security.acls)
    results = []
    gone: set[AclBinding] = set()
    for fields in request.filters:
        try:
            wanted = checked_filter(fields)
        except RequestError as error:
            results.append(_result(error.code, error.message, []))
            continue
        found = [binding for binding in held if wanted.matches(binding)]
        gone.update(found)
        results.append(_result(ErrorCode.none, None, found))
    bindings = sorted(gone)
    for start in range(0, len(bindings), ACLS_AT_ONCE):
        some = tuple(bindings[start : start + ACLS_AT_ONCE])
        await ctx.services.metadata.submit(RemoveAcls(bindings=some))
    return reply(filter_results=results)


def _result(code: ErrorCode, message: str | None, found: list[AclBinding]) -> dict[str, Any]:
    matching = [
        {
            "error_code": ErrorCode.none,
            "error_message": None,
            **resource_fields(binding),
            **acl_fields(binding),
        }
        for binding in found
    ]
    return {"error_code": code, "error_message": message, "matching_acls": matching}
