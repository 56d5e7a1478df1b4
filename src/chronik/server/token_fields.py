"""Delegation tokens in requests and answers, and who may ask for them at all (KIP-48)."""

from __future__ import annotations

import hmac
from typing import Final

from msgspec import structs

from chronik.metadata.commands import PutToken, RemoveToken
from chronik.model import ErrorCode, RequestError
from chronik.security.principals import ANONYMOUS
from chronik.security.tokens import DelegationToken, may_renew, token_secret
from chronik.server.dispatch import Reply, RequestContext, reply

__all__ = ["require_room", "set_expiry", "split_principal", "token_key", "token_user"]

TOKENS_PER_REQUESTER_MAX: Final = 1_000
"""Tokens that one principal had made and that are still known, expired ones among them: so that no user can
take all that the cluster has room for."""


def token_key(ctx: RequestContext) -> bytes:
    key = ctx.services.settings.delegation_token_secret_key
    if key is None:
        raise RequestError(ErrorCode.delegation_token_auth_disabled)
    return key.encode()


def token_user(ctx: RequestContext) -> str:
    """The requesting principal. RequestError if it did not log in, or logged in with a token."""
    session = ctx.connection.session
    if session is None or session.by_token or session.principal == ANONYMOUS:
        raise RequestError(ErrorCode.delegation_token_request_not_allowed)
    return session.principal


def require_room(ctx: RequestContext, requester: str) -> None:
    """RequestError if this principal has had as many tokens made as it may.

    Asked before the token is submitted: requests that are under way at once can go over it by their number.
    """
    held = sum(token.requester == requester for token in ctx.services.state.security.tokens.values())
    if held >= TOKENS_PER_REQUESTER_MAX:
        raise RequestError(
            ErrorCode.policy_violation,
            f"{requester} has {TOKENS_PER_REQUESTER_MAX} delegation tokens already.",
        )


async def set_expiry(ctx: RequestContext, secret: bytes, period_ms: int) -> Reply:
    """Have the token with this secret expire after `period_ms`, though never after its end. With a negative
    period it is removed at once.
    """
    user = token_user(ctx)
    token = _find_token(ctx, secret)
    if not may_renew(token, user):
        raise RequestError(ErrorCode.delegation_token_owner_mismatch)
    now_ms = ctx.services.now_ms()
    if period_ms < 0:
        expires_ms = now_ms
        await ctx.services.metadata.submit(RemoveToken(token_id=token.token_id))
    else:
        expires_ms = min(token.ends_ms, now_ms + period_ms)
        await ctx.services.metadata.submit(PutToken(token=structs.replace(token, expires_ms=expires_ms)))
    return reply(error_code=ErrorCode.none, expiry_timestamp=expires_ms)


def _find_token(ctx: RequestContext, secret: bytes) -> DelegationToken:
    """The token with this secret."""
    key = token_key(ctx)
    found = None
    for token in ctx.services.state.security.tokens.values():
        if hmac.compare_digest(token_secret(token.token_id, key), secret):
            found = token
    if found is None:
        raise RequestError(ErrorCode.delegation_token_not_found)
    if found.expires_ms <= ctx.services.now_ms():
        raise RequestError(ErrorCode.delegation_token_expired)
    return found


def split_principal(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
