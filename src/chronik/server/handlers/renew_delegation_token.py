"""RenewDelegationToken: a token lives longer, never beyond its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import BY_SECRET
from chronik.server.token_fields import set_expiry
from chronik.wire.api import ApiKey
from chronik.wire.schema import in_ms

if TYPE_CHECKING:
    from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest


def _on_error(request: RenewDelegationTokenRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, expiry_timestamp=0)


@handles(ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2), needs=BY_SECRET, on_error=_on_error)
async def renew_delegation_token(request: RenewDelegationTokenRequest, ctx: RequestContext) -> Reply:
    period_ms = in_ms(request.renew_period)
    if period_ms < 0:
        period_ms = ctx.services.settings.delegation_token_expiry_time_ms
    return await set_expiry(ctx, bytes(request.hmac), period_ms)
