"""CreateDelegationToken: a secret that expires, for a job that acts as its owner."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from chronik.metadata.commands import PutToken
from chronik.model import ErrorCode, RequestError, check_name_bytes
from chronik.security.acls import Operation, ResourceType
from chronik.security.tokens import DelegationToken, token_secret
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import asks
from chronik.server.token_fields import require_room, split_principal, token_key, token_user
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest


def _on_error(request: CreateDelegationTokenRequest, code: ErrorCode, message: str | None) -> Reply:
    times = dict.fromkeys(("issue_timestamp", "expiry_timestamp", "max_timestamp"), 0)
    names = ("principal_type", "principal_name")
    empty = dict.fromkeys((*names, *(f"token_requester_{name}" for name in names), "token_id"), "")
    return reply(error_code=code, hmac=b"", **times, **empty)


RENEWERS_MAX: Final = 100


def _check_names(owner: str, renewers: tuple[str, ...]) -> None:
    """Every node keeps them until the token is removed."""
    if len(renewers) > RENEWERS_MAX:
        raise RequestError(ErrorCode.policy_violation, f"A token has at most {RENEWERS_MAX} renewers.")
    try:
        for name in (owner, *renewers):
            check_name_bytes("the name of an owner or renewer", name)
    except ValueError as error:
        raise RequestError(ErrorCode.policy_violation, f"{error}.") from None


@handles(
    ApiKey.CREATE_DELEGATION_TOKEN,
    versions=(1, 3),
    needs=asks((Operation.CREATE_TOKENS, ResourceType.USER)),
    on_error=_on_error,
)
async def create_delegation_token(request: CreateDelegationTokenRequest, ctx: RequestContext) -> Reply:
    services, settings = ctx.services, ctx.services.settings
    requester, key = token_user(ctx), token_key(ctx)
    owner = requester
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
        if owner != requester:
            ctx.access.require(Operation.CREATE_TOKENS, ResourceType.USER, owner)
    renewers = tuple(f"{one.principal_type}:{one.principal_name}" for one in request.renewers)
    if any(not name.startswith("User:") for name in (owner, *renewers)):
        raise RequestError(ErrorCode.invalid_principal_type)
    _check_names(owner, renewers)
    require_room(ctx, requester)
    now_ms = services.now_ms()
    wanted_ms = int(request.max_lifetime.total_seconds() * 1000)
    longest_ms = settings.delegation_token_max_lifetime_ms
    ends_ms = now_ms + (longest_ms if wanted_ms <= 0 else min(wanted_ms, longest_ms))
    token = DelegationToken(
        token_id=base64.urlsafe_b64encode(services.new_uuid().bytes).decode().rstrip("="),
        owner=owner,
        requester=requester,
        renewers=renewers,
        issued_ms=now_ms,
        expires_ms=min(ends_ms, now_ms + settings.delegation_token_expiry_time_ms),
        ends_ms=ends_ms,
    )
    await services.metadata.submit(PutToken(token=token))
    owner_type, owner_name = split_principal(owner)
    requester_type, requester_name = split_principal(requester)
    return reply(
        error_code=ErrorCode.none,
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.ends_ms,
        token_id=token.token_id,
        hmac=token_secret(token.token_id, key),
    )
