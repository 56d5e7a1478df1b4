"""CreateAcls: accepts or refuses each ACL by itself and writes all accepted ones in one metadata entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.metadata.commands import AddAcls
from chronik.model import ErrorCode, RequestError
from chronik.security.acl_fields import read_binding
from chronik.security.acls import AclBinding, Operation, check_binding
from chronik.server.acl_requests import require_authorizer
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest


def _on_error(request: CreateAclsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(results=[{"error_code": code, "error_message": message} for _ in request.creations])


@handles(ApiKey.CREATE_ACLS, versions=(1, 3), needs=on_cluster(Operation.ALTER), on_error=_on_error)
async def create_acls(request: CreateAclsRequest, ctx: RequestContext) -> Reply:
    require_authorizer(ctx.access)
    results: list[dict[str, Any]] = []
    bindings = []
    for creation in request.creations:
        try:
            bindings.append(_binding(creation))
            results.append({"error_code": ErrorCode.none, "error_message": None})
        except RequestError as error:
            results.append({"error_code": error.code, "error_message": error.message})
    if bindings:
        await ctx.services.metadata.submit(AddAcls(bindings=tuple(bindings)))
    return reply(results=results)


def _binding(creation: AclCreation) -> AclBinding:
    try:
        binding = read_binding(creation, creation.resource_pattern_type, creation)
        check_binding(binding)
    except ValueError as error:
        raise RequestError(ErrorCode.invalid_request, f"No such ACL can be made: {error}.") from None
    return binding
