"""SaslHandshake: how a client is going to prove who it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import NOTHING
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest


@handles(ApiKey.SASL_HANDSHAKE, versions=(0, 1), needs=NOTHING)
async def sasl_handshake(request: SaslHandshakeRequest, ctx: RequestContext) -> Reply:
    """After version 0 the client sends its messages without Kafka's header around them."""
    session = ctx.connection.session
    if session is None:
        return reply(error_code=ErrorCode.illegal_sasl_state, mechanisms=[])
    code = await session.handshake(request.mechanism)
    if code is ErrorCode.none and ctx.api_version == 0:
        session.expects_bare = True
    return reply(error_code=code, mechanisms=list(session.offered))
