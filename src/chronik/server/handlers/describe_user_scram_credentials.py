"""DescribeUserScramCredentials: which users can log in, by which mechanisms. Shows no keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.model import ErrorCode
from chronik.security.acls import Operation
from chronik.security.scram import MECHANISMS, Credential
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), needs=on_cluster(Operation.DESCRIBE))
async def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, ctx: RequestContext
) -> Reply:
    held = ctx.services.state.security.users
    names = sorted(held) if not request.users else [user.name for user in request.users]
    results = []
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            results.append(_result(name, ErrorCode.duplicate_resource, message, {}))
        elif name not in held:
            message = f"Attempt to describe a user credential that does not exist: {name}"
            results.append(_result(name, ErrorCode.resource_not_found, message, {}))
        else:
            results.append(_result(name, ErrorCode.none, None, held[name]))
    return reply(error_code=ErrorCode.none, error_message=None, results=results)


def _result(
    name: str, code: ErrorCode, message: str | None, credentials: Mapping[str, Credential]
) -> dict[str, Any]:
    infos = [
        {"mechanism": MECHANISMS[one.mechanism].number, "iterations": one.iterations}
        for _, one in sorted(credentials.items())
    ]
    return {"user": name, "error_code": code, "error_message": message, "credential_infos": infos}
