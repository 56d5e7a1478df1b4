"""ExpireDelegationToken: a token ends earlier, or at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import BY_SECRET
from chronik.server.token_fields import set_expiry
from chronik.wire.api import ApiKey
from chronik.wire.schema import in_ms

if TYPE_CHECKING:
    from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest


def _on_error(request: ExpireDelegationTokenRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, expiry_timestamp=0)


@handles(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2), needs=BY_SECRET, on_error=_on_error)
async def expire_delegation_token(request: ExpireDelegationTokenRequest, ctx: RequestContext) -> Reply:
    return await set_expiry(ctx, bytes(request.hmac), in_ms(request.expiry_time_period))
