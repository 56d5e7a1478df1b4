"""DescribeDelegationToken: one's own tokens, and others' where that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.model import ErrorCode
from chronik.security.acls import Operation, ResourceType
from chronik.security.tokens import DelegationToken, may_renew, token_secret
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import asks
from chronik.server.token_fields import split_principal, token_key, token_user
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest


def _on_error(request: DescribeDelegationTokenRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, tokens=[])


@handles(
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    versions=(1, 3),
    needs=asks((Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN)),
    on_error=_on_error,
)
async def describe_delegation_token(request: DescribeDelegationTokenRequest, ctx: RequestContext) -> Reply:
    user, key = token_user(ctx), token_key(ctx)
    owners = (
        None
        if request.owners is None
        else {f"{one.principal_type}:{one.principal_name}" for one in request.owners}
    )
    now_ms = ctx.services.now_ms()
    tokens = [
        _described(token, key)
        for _, token in sorted(ctx.services.state.security.tokens.items())
        if token.expires_ms > now_ms
        and (owners is None or token.owner in owners)
        and _may_see(ctx, token, user)
    ]
    return reply(error_code=ErrorCode.none, tokens=tokens)


def _may_see(ctx: RequestContext, token: DelegationToken, user: str) -> bool:
    if may_renew(token, user):
        return True
    if ctx.access.is_open:
        return False
    return ctx.access.allows(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)


def _described(token: DelegationToken, key: bytes) -> dict[str, Any]:
    owner_type, owner_name = split_principal(token.owner)
    requester_type, requester_name = split_principal(token.requester)
    renewers = [split_principal(one) for one in token.renewers]
    return {
        "principal_type": owner_type,
        "principal_name": owner_name,
        "token_requester_principal_type": requester_type,
        "token_requester_principal_name": requester_name,
        "issue_timestamp": token.issued_ms,
        "expiry_timestamp": token.expires_ms,
        "max_timestamp": token.ends_ms,
        "token_id": token.token_id,
        "hmac": token_secret(token.token_id, key),
        "renewers": [{"principal_type": kind, "principal_name": name} for kind, name in renewers],
    }
