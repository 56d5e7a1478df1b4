"""SaslAuthenticate: one message of a login, and again before a session ends (KIP-368)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import NOTHING
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest


@handles(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), needs=NOTHING)
async def sasl_authenticate(request: SaslAuthenticateRequest, ctx: RequestContext) -> Reply:
    session = ctx.connection.session
    if session is None:
        message = "there is no login on this listener"
        return reply(error_code=ErrorCode.illegal_sasl_state, error_message=message, auth_bytes=b"")
    answer = await session.authenticate(bytes(request.auth_bytes))
    ctx.connection.access = session.access
    return reply(
        error_code=answer.error_code,
        error_message=answer.message,
        auth_bytes=answer.data,
        session_lifetime=answer.lifetime_ms,
    )
